"""Trained samples per second of reroll's asynchronous loop against TRL's `GRPOTrainer`, on a CPU.

    hatch run versus-trl:bench [--quick] [--json FILE] [--rounds N] [--steps N] [--only equal] [--sync]

Both train the same model on the same prompts in the same order: addition questions, groups of 8, 128 responses and
one optimizer step a batch, the boxed number as reward, GRPO without KL and without division by the standard
deviation, AdamW. The learning rate is so low that the policy, and with it the lengths, stays what it was.

- `equal`: every response has exactly 16 tokens: the end-of-sequence token is one that is never drawn.
- `skewed`: a response is short (4 to 6 tokens) with probability 7/8 and runs to the limit of 128 with 1/8. The draw
  is for each response, not for each prompt: in real runs siblings differ in length, and the prompts stay those of
  the task set. So the two sides' counts of long responses differ a little; the output shows them.

reroll generates while it trains, one collection ahead, with weights refreshed in the middle of responses; its seconds
of generation and training overlap. `--sync` lets them take turns.

Both sides train on every response, groups of equal rewards included: TRL always does, for reroll the group filters
are switched off. A trained sample is a response that was generated and went through an optimizer step.

A round is one process of each, reroll first. Start-up and the first steps are left out; figures are over the steps
that follow, and ratios are medians over rounds. Each side runs with the better of one and two threads, tried before
the first round, and with the fastest micro-batches found (`REROLL_TOKENS`, `TRL_ROWS`). TRL generates with
transformers' `generate`: its other way without a server, continuous batching, takes more than five times as long.
Beside wall-clock time, CPU time of all of a side's processes is compared: other load disturbs it less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import psutil

from reroll.models.files import resolve_model
from reroll.tasks.arithmetic import Addition
from reroll.traces.saved import read_rollouts, step_directory

PROMPTS, GROUP = 16, 8
SAMPLES = PROMPTS * GROUP
LEARNING_RATE = 1e-6
BOXED = r"\\boxed\{(\d+)\}"
MAX_TOKENS = {"equal": 16, "skewed": 128}
SHORT = 8
"""Most tokens of a short response."""
WARMUP = 2
"""First steps of each process, which are not counted."""
REROLL_TOKENS = 2048
"""Padded tokens of a micro-batch; of 2048, 4096 and the default 16384 the fastest in both scenarios."""
TRL_ROWS = 128
"""Rows of a micro-batch. TRL pads each to the longest of the whole batch: 16, 32 and 64 are not faster."""

RUN_FILE = """
model.path = {model}
data.task_set = {{ name = "addition", verifier = "regex" }}
data.verifiers = [{{ name = "regex", pattern = '{pattern}' }}]
data.shuffle = false
rollout.num_rollout = {steps}
rollout.rollout_batch_size = {prompts}
rollout.n_samples_per_prompt = {group}
rollout.rollout_max_prompt_len = 32
rollout.rollout_max_response_len = {max_tokens}
rollout.group_filters = []
serving.engine = {{ name = "local", threads = {threads} }}
trainer = {{ lr = {lr}, threads = {threads}, max_tokens_per_micro_batch = {micro_batch} }}
output.dir = {output}
"""

ASYNCHRONOUS = """
async = { fully_async = true, max_weight_staleness = 1 }
serving.publication_mode = "refresh"
"""

TRL_SETTINGS: dict[str, Any] = {
    # The recipe of reroll's defaults; `grpo` is the mean over responses of each one's token mean.
    "num_generations": GROUP, "temperature": 1.0, "shuffle_dataset": False, "learning_rate": LEARNING_RATE,
    "beta": 0.0, "loss_type": "grpo", "scale_rewards": "none", "epsilon": 0.2, "epsilon_high": 0.28,
    "lr_scheduler_type": "constant", "adam_beta2": 0.98, "weight_decay": 0.0, "max_grad_norm": 1.0,
    # Whatever would only cost time on a CPU; float32, as on reroll's side.
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False,
    "save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


# Models whose responses have known lengths


def tasks(count: int) -> list[Any]:
    """The first training tasks of the addition set, in its own order."""
    task_set = Addition(Addition.Config(verifier="regex"))
    return [task_set.task(index % len(task_set)) for index in range(count)]


def copy_files(source: Path, target: Path) -> None:
    """Copies what `target` does not hold yet."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if not (target / path.name).exists():
            (target / path.name).write_bytes(path.read_bytes())


def make_equal(source: Path, target: Path) -> None:
    """A copy whose end-of-sequence token is the padding token, which the model never draws."""
    copy_files(source, target)
    config, tokenizer = (json.loads((source / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
    ids = {"eos_token_id": config["pad_token_id"]}
    tokens = {"eos_token": tokenizer["pad_token"]}
    for name, values in ("config", ids), ("generation_config", ids), ("tokenizer_config", tokens):
        path = target / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))


def make_skewed(source: Path, target: Path, steps: int = 150, rows: int = 16) -> None:
    """A copy, tuned for seconds: one response in eight repeats "." without end, the others are boxed numbers.

    The short ones are drawn from the model itself. Two rows of every sixteen are long, and the first token, which
    decides, weighs as much as all that follow it, so that its probability comes out right.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    messages = [task.prompt for task in tasks(512)]
    prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    drawn = model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=SHORT)[:, inputs["input_ids"].shape[1] :]
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    (box,), (dot,) = (tokenizer.encode(text, add_special_tokens=False) for text in ("\\boxed{", "."))
    answers = [[token for token in row if token != pad] for row in drawn.tolist()]
    short = [(p, a) for p, a in zip(prompts, answers, strict=True) if a[0] == box and a[-1] == end]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        chosen = [short[index] for index in torch.randperm(len(short))[:rows].tolist()]
        batch = [(p, [dot] * MAX_TOKENS["skewed"] if row < rows // 8 else a) for row, (p, a) in enumerate(chosen)]
        width = max(len(p) + len(a) for p, a in batch)
        ids, weights = torch.full((rows, width), pad), torch.zeros(rows, width)
        for row, (p, a) in enumerate(batch):
            ids[row, : len(p) + len(a)] = torch.tensor(p + a)
            weights[row, len(p)] = 1 / rows
            weights[row, len(p) + 1 : len(p) + len(a)] = 1 / rows / (len(a) - 1)
        logprobs = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        loss = -(logprobs.gather(-1, ids[:, 1:, None])[..., 0] * weights[:, 1:]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(target)
    copy_files(source, target)


class CpuClock:
    """Follows a process tree, so that CPU seconds of a stretch of wall-clock time can be told afterwards."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.looks: list[tuple[float, float]] = []
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        spent: dict[int, float] = {}
        while self.root.is_running() and self.root.status() != psutil.STATUS_ZOMBIE:
            try:
                for process in [self.root, *self.root.children(recursive=True)]:
                    times = process.cpu_times()
                    spent[process.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
            self.looks.append((time.time(), sum(spent.values())))
            time.sleep(0.2)

    def between(self, start: float, end: float) -> float:
        times, totals = zip(*self.looks, strict=True)
        return float(np.interp(end, times, totals) - np.interp(start, times, totals))


def run(command: Sequence[str], threads: int, folder: Path) -> CpuClock:
    """Runs a process to its end; if it fails, what it printed is shown."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with (folder / "output.txt").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environment)
        clock = CpuClock(process.pid)
        code = process.wait()
    clock.thread.join()
    if code:
        sys.exit((folder / "output.txt").read_text()[-4000:] + f"\n{Path(command[0]).name} ended with exit code {code}")
    return clock


def figures(clock: CpuClock, records: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> dict[str, Any]:
    """What a process came to over its counted steps. Seconds are wall-clock ones unless they say otherwise.

    Args:
        records: of every step, warm-up included: `time` of its end, `generation` and `training` seconds, `reward`.
        lengths: response tokens of every sample of the counted steps.
    """
    start, end, counted, samples = records[WARMUP - 1]["time"], records[-1]["time"], records[WARMUP:], len(lengths)
    seconds, cpu_seconds = end - start, clock.between(start, end)
    generation, training = (sum(record[part] for record in counted) for part in ("generation", "training"))
    return {
        "samples": samples,
        "samples_per_second": samples / seconds,
        "samples_per_second_per_machine_core": samples / seconds / (os.cpu_count() or 1),
        "samples_per_cpu_second": samples / cpu_seconds,
        "cores_used": cpu_seconds / seconds,
        "generation_seconds": generation,
        "training_seconds": training,
        "other_seconds": max(0.0, seconds - generation - training),
        "waiting_seconds": sum(record.get("waiting", 0.0) for record in counted),
        "reward": fmean(record["reward"] for record in counted),
        "lengths": dict(sorted(Counter(lengths).items())),
    }


# The two sides


def run_reroll(scenario: str, model: Path, steps: int, threads: int, folder: Path, more: str) -> dict[str, Any]:
    """One `reroll train`, read from its metrics and saved rollouts; `more` is for its run file."""
    paths = {"model": json.dumps(str(model)), "output": json.dumps(str(folder / "run"))}
    sizes = {"prompts": PROMPTS, "group": GROUP, "steps": steps, "max_tokens": MAX_TOKENS[scenario]}
    speed = {"threads": threads, "micro_batch": REROLL_TOKENS}
    text = RUN_FILE.format(**paths, **sizes, **speed, pattern=BOXED, lr=LEARNING_RATE)
    (folder / "run.toml").write_text(text + more, "utf-8")
    clock = run([str(Path(sys.executable).with_name("reroll")), "train", str(folder / "run.toml")], threads, folder)
    names = {"generation": "throughput/generation_seconds", "training": "train/seconds", "reward": "rollout/reward",
             "time": "time", "samples": "train/responses", "waiting": "wait/trainer_seconds"}  # fmt: skip
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    records = [{name: line[key] for name, key in names.items()} for line in lines]
    saved = [trace for step in range(WARMUP, steps) for trace in read_rollouts(step_directory(folder / "run", step))]
    used = [trace for trace in saved if trace["info"]["reroll"]["disposition"] == "consumed"]
    lengths = [sum(len(node["token_ids"]) for node in trace["nodes"] if node["sampled"]) for trace in used]
    if any(record["samples"] != SAMPLES for record in records):
        sys.exit(f"reroll did not train on all {SAMPLES} responses of every step")
    return figures(clock, records, lengths)


def run_trl(scenario: str, model: Path, steps: int, threads: int, folder: Path, more: str) -> dict[str, Any]:
    """One process of this script that trains with TRL."""
    clock = run([sys.executable, __file__, "_trl", scenario, str(model), str(steps), str(threads)], threads, folder)
    records = json.loads((folder / "steps.json").read_text())
    return figures(clock, records, [length for record in records[WARMUP:] for length in record["lengths"]])


def train_with_trl(scenario: str, model: str, steps: int, threads: int) -> None:
    """What runs in TRL's process; writes `steps.json` into the current folder."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads)
    records: list[dict[str, Any]] = []
    current: defaultdict[str, Any] = defaultdict(float)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = method(*arguments, **keywords)
            current["ended"] = time.perf_counter()
            current[name] += current["ended"] - start
            return result

        return call

    class TimedTrainer(GRPOTrainer):
        """TRL's own metrics do not tell generation from training."""

        _generate_single_turn = timed("generation", GRPOTrainer._generate_single_turn)
        _prepare_inputs = timed("prepared", GRPOTrainer._prepare_inputs)  # generation, scoring, advantages
        training_step = timed("stepped", GRPOTrainer.training_step)  # the same, then forward and backward

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            optimizer = time.perf_counter() - current["ended"]  # clipping and schedule included
            training = current["stepped"] - current["prepared"] + optimizer
            records.append({**current, "training": training, "time": time.time()})
            current.clear()

    def reward(completions: list[Any], completion_ids: list[list[int]], target: list[str], **_: Any) -> list[float]:
        boxes = [re.findall(BOXED, completion[0]["content"]) for completion in completions]
        scores = [float(found[-1:] == [right]) for found, right in zip(boxes, target, strict=True)]
        current["reward"], current["lengths"] = fmean(scores), [len(ids) for ids in completion_ids]
        return scores

    rows = [{"prompt": task.prompt, "target": task.targets["regex"]} for task in tasks(PROMPTS * steps)]
    sizes = {"per_device_train_batch_size": TRL_ROWS, "gradient_accumulation_steps": SAMPLES // TRL_ROWS}
    config = GRPOConfig(
        output_dir=".", max_steps=steps, max_completion_length=MAX_TOKENS[scenario], **sizes, **TRL_SETTINGS
    )
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    TimedTrainer(
        policy, reward, config, Dataset.from_list(rows), processing_class=tokenizer, callbacks=[Clock()]
    ).train()
    Path("steps.json").write_text(json.dumps(records))


SIDES = {"reroll": run_reroll, "trl": run_trl}


def compare(
    scenario: str, model: Path, steps: int, rounds: int, threads: Sequence[int], scratch: Path, more: str
) -> dict[str, Any]:
    """Tries the thread counts, then lets both sides take turns."""

    def one(side: str, count: int, steps: int) -> dict[str, Any]:
        found = SIDES[side](scenario, model, WARMUP + steps, count, Path(tempfile.mkdtemp(dir=scratch)), more)
        lengths, samples = found["lengths"], found["samples"]
        long = lengths.get(MAX_TOKENS[scenario], 0) / samples
        between = sum(number for length, number in lengths.items() if SHORT < length < MAX_TOKENS[scenario]) / samples
        low, high = (1.0, 1.0) if scenario == "equal" else (0.06, 0.2)
        if between > 0.01 or not low <= long <= high:
            sys.exit(f"{scenario}: {side}'s lengths are not those that were meant: {lengths}")
        return found

    tried: dict[str, dict[int, float]] = {side: {} for side in SIDES}
    for count in threads if len(threads) > 1 else ():
        for side in SIDES:
            tried[side][count] = one(side, count, max(2, steps // 3))["samples_per_second"]
    chosen = {side: max(rates, key=rates.__getitem__) if rates else threads[0] for side, rates in tried.items()}
    listed = [{side: one(side, chosen[side], steps) for side in SIDES} for _ in range(rounds)]
    names = ("samples_per_second", "samples_per_cpu_second")
    ratios = {name: [item["reroll"][name] / item["trl"][name] for item in listed] for name in names}
    return {"name": scenario, "threads": chosen, "threads_tried": tried, "rounds": listed, "ratios_of_rounds": ratios,
            "ratios": {name: median(values) for name, values in ratios.items()}}  # fmt: skip


def show(result: Mapping[str, Any], steps: int) -> None:
    """The table of one scenario."""
    rounds = result["rounds"]
    print(f"\n{result['name']}: medians of {len(rounds)} rounds of {steps} steps of {SAMPLES} samples")
    print("        threads  samples/s  /machine core  /CPU second  cores used   s/step: generation + training + other")
    for side in SIDES:
        names = ("samples_per_second", "samples_per_second_per_machine_core", "samples_per_cpu_second", "cores_used")
        rate, core, cpu, used = (median(item[side][name] for item in rounds) for name in names)
        parts = [
            median(item[side][f"{part}_seconds"] for item in rounds) for part in ("generation", "training", "other")
        ]
        split = " + ".join(f"{part / steps:.3f}" for part in parts)
        print(f"{side:<8}{result['threads'][side]:>7}{rate:>11.1f}{core:>15.1f}{cpu:>13.1f}{used:>12.2f}   {split}")
    for side in SIDES:
        lengths = sum((Counter(item[side]["lengths"]) for item in rounds), Counter())
        sizes = ", ".join(f"{count} of {length}" for length, count in sorted(lengths.items()))
        tried = ", ".join(f"{n} threads {rate:.1f}/s" for n, rate in result["threads_tried"][side].items())
        reward = fmean(item[side]["reward"] for item in rounds)
        if any(item[side]["waiting_seconds"] for item in rounds):
            waits = median(item[side]["waiting_seconds"] for item in rounds) / steps
            print(f"{side:<8}the trainer waited {waits:.3f} s a step for rollouts")
        print(f"{side:<8}responses by tokens: {sizes}; mean reward {reward:.3f}; tried: {tried or 'nothing'}")
    for name, ratio in result["ratios"].items():
        listed = ", ".join(f"{value:.2f}" for value in result["ratios_of_rounds"][name])
        print(f"reroll / TRL, {name.replace('_', ' ')}: {ratio:.2f}x (rounds: {listed})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of three steps with one thread")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="counted steps of a round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="counts to try")
    parser.add_argument("--only", choices=list(MAX_TOKENS))
    parser.add_argument("--sync", action="store_true", help="reroll generates and trains in turns")
    parser.add_argument("--model", default="builtin:tiny-math", help="as model.path in a run file")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    steps, rounds, threads = (3, 1, [1]) if options.quick else (options.steps, options.rounds, options.threads)
    packages = {name: version(name) for name in ("reroll", "trl", "transformers", "torch")}
    versions = {"python": platform.python_version(), **packages}
    print(", ".join(f"{name} {value}" for name, value in versions.items()) + f"; {os.cpu_count()} cores", flush=True)
    results = []
    more = "" if options.sync else ASYNCHRONOUS
    with tempfile.TemporaryDirectory() as scratch:
        for scenario, make in {"equal": make_equal, "skewed": make_skewed}.items():
            if options.only in (None, scenario):
                model = Path(scratch) / scenario
                make(resolve_model(options.model).directory, model)
                results.append(compare(scenario, model, steps, rounds, threads, Path(scratch), more))
                show(results[-1], steps)
    if options.json:
        settings = {"samples": SAMPLES, "group": GROUP, "warmup": WARMUP, "steps": steps, "lr": LEARNING_RATE,
                    "max_tokens": MAX_TOKENS, "reroll_tokens": REROLL_TOKENS, "trl_rows": TRL_ROWS}  # fmt: skip
        report = {"versions": versions, "machine_cores": os.cpu_count(), "settings": settings, "scenarios": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["_trl"]:
        train_with_trl(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
