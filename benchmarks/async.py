"""The same run with generation and training in turns, and at the same time: trained samples per second, and what is
learnt.

    python benchmarks/async.py [--seeds 0 1 2] [--steps N] [--modes refresh barrier engine_drain] [--json FILE]

The run is the quickstart's without group filters, so that every step trains on all 128 responses. Its model is the
shipped one, grown to four times its depth by blocks that add nothing at first: it answers and learns like the shipped
one, and takes several times as long for a token, so that arithmetic and not bookkeeping is what is measured. The engine
serves 14 requests at a time, with which generation and training cost about the same. `--plain` takes the shipped model
and an engine as it comes.

`sync` is the synchronous form; the others are asynchronous with a staleness bound of 1, each with the publication mode
that it is named after. One engine with one thread and a trainer with one thread: what two cores can give at most is a
ratio of 2, less what the controller and scoring take. A round is one process of each, with the round's seed.

From timestamps of every training call and every response: the share of the time in which the trainer was busy during
which the engine was generating as well. Standing still is the publication's pause, recomputation apart, over the time
of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart-sync.toml"
REQUESTS = 14
"""That the engine serves at a time."""
WARMUP = 3
"""First steps, which are not counted."""
Interval = tuple[float, float]


def grow(target: Path, times: int = 4) -> Path:
    """The shipped model with so many times its layers: after each one follow copies whose outputs are zero."""
    from safetensors.torch import load_file, save_file

    from reroll.models.files import resolve_model

    source = resolve_model("builtin:tiny-math").directory
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] *= times
    if config.get("layer_types"):
        config["layer_types"] = [kind for kind in config["layer_types"] for _ in range(times)]
    (target / "config.json").write_text(json.dumps(config))
    grown = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.startswith("model.layers."):
            grown[name] = tensor
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        for copy in range(times):
            silent = copy and rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
            grown[f"model.layers.{int(layer) * times + copy}.{rest}"] = tensor * 0 if silent else tensor.clone()
    save_file(grown, target / "model.safetensors", {"format": "pt"})
    return target


def overrides(mode: str, seed: int, steps: int, requests: int, model: str, output: Path) -> list[str]:
    """What makes the synchronous quickstart the run of one mode."""
    found = [
        f"run.seed={seed}",
        f"model.path={json.dumps(model)}",
        f"rollout.num_rollout={steps}",
        "rollout.group_filters=[]",
        "rollout.observe_sibling_timing=true",
        f'serving.engine={{name="local", max_running_requests={requests}}}',
        "eval.skip_eval_before_train=true",
        f"eval.eval_interval={10 * steps}",
        f'output.dir="{output}"',
        "output.export_hf=false",
    ]
    if mode != "sync":
        found += ["async.fully_async=true", "async.max_weight_staleness=1", f'serving.publication_mode="{mode}"']
    return found


async def run_here(settings: Sequence[str], output: Path) -> dict[str, Any]:
    """A whole run in this process; when each training call began and ended, and when each publication did."""
    from rich.console import Console

    from reroll.assembly import open_session
    from reroll.config import load_run_file
    from reroll.launch.start import begin, held_output
    from reroll.loop import train
    from reroll.plan import size_problems
    from reroll.plugins import load_plugins
    from reroll.reporting.display import Display
    from reroll.reporting.summary import Summary

    run = load_run_file(CONFIG, settings, load_plugins(), [size_problems])
    summary = Summary("benchmark", output)
    steps: list[dict[str, Any]] = []
    with held_output(run, print), (output / "display.txt").open("w") as shown:
        display = Display(1, Console(file=shown))
        async with open_session(run, begin(run, output, display.line, display.warn), display, summary) as session:
            inner = session.trainer.train

            async def timed(samples: list[Any]) -> list[dict[str, float]]:
                began = time.time()
                metrics = await inner(samples)
                steps.append({"began": began, "ended": time.time(), "samples": len(samples)})
                return metrics

            session.trainer.train = timed  # type: ignore[method-assign]
            await train(session)
            session.finish_summary()
    return {"steps": steps, "accuracy": summary.evaluations[-1]["accuracy"], "ledger": summary.ledger}


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time as disjoint intervals in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds that lie in both."""
    others = union(second)
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in union(first) for b in others)


def figures(found: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """What a run came to over its counted steps."""
    steps = found["steps"]
    start, end = steps[WARMUP - 1]["ended"], steps[-1]["ended"]
    samples = sum(step["samples"] for step in steps[WARMUP:])
    busy = [(step["began"], step["ended"]) for step in steps[WARMUP:]]
    (timing,) = output.glob("sibling_timing_*.jsonl")
    rows = [json.loads(line) for line in timing.read_text().splitlines()]
    responses = [sibling for row in rows for sibling in row["siblings"] if sibling["end"] is not None]
    decoding = [(sibling["start"], sibling["end"]) for sibling in responses]
    inside = union([(max(a, start), min(b, end)) for a, b in decoding if b > start and a < end])
    tokens = sum(sibling["tokens"] for sibling in responses if start < sibling["end"] <= end)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/loss" in line]
    staleness: Counter[int] = Counter()
    for line in lines[WARMUP:]:
        for name, count in line.items():
            if name.startswith("staleness/groups_"):
                staleness[int(name.rsplit("_", 1)[1])] += count
    step_seconds = (end - start) / (len(steps) - WARMUP)
    counted = lines[WARMUP:]
    training = sum(b - a for a, b in busy)
    return {
        "samples_per_second": samples / (end - start),
        "step_seconds": step_seconds,
        "training_seconds": training / len(busy),
        "generating_seconds": sum(b - a for a, b in inside) / len(busy),
        "decoding_share_of_training": overlap(busy, decoding) / training,
        "generated_tokens_per_second": tokens / (end - start),
        "trainer_waiting_seconds": fmean(line["wait/trainer_seconds"] for line in counted),
        "producer_waiting_seconds": fmean(line["wait/producer_seconds"] for line in counted),
        "publication_seconds": fmean(line["publication/seconds"] for line in counted),
        "pause_share_of_step": fmean(line["publication/pause_seconds"] for line in counted) / step_seconds,
        "recompute_seconds": fmean(line["publication/recompute_seconds"] for line in counted),
        "requests_in_flight": fmean(line["publication/in_flight"] for line in counted),
        "staleness": dict(sorted(staleness.items())),
        "accuracy": found["accuracy"],
        "ledger": found["ledger"],
    }


def run(mode: str, seed: int, steps: int, requests: int, model: str, folder: Path) -> dict[str, Any]:
    """One process with a whole run."""
    output = folder / f"{mode}-{seed}"
    settings = overrides(mode, seed, steps, requests, model, output)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "_run", str(output), *settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{mode}, seed {seed}: {done.stderr[-4000:]}")
    return figures(json.loads(done.stdout.splitlines()[-1]), output)


def show(mode: str, seed: int, found: Mapping[str, Any]) -> None:
    histogram = ", ".join(f"{age}: {count}" for age, count in found["staleness"].items())
    print(
        f"seed {seed} {mode:<13}{found['samples_per_second']:7.1f} samples/s  "
        f"{found['step_seconds']:.3f} s/step ({found['training_seconds']:.3f} training, "
        f"{found['generating_seconds']:.3f} generating, {found['publication_seconds']:.3f} publishing; "
        f"trainer waits {found['trainer_waiting_seconds']:.3f}, generation {found['producer_waiting_seconds']:.3f})  "
        f"decoding during {found['decoding_share_of_training']:.0%} of training  "
        f"standing still {found['pause_share_of_step']:.2%} of a step, recomputing {found['recompute_seconds']:.4f} s "
        f"with {found['requests_in_flight']:.0f} in flight  staleness {histogram}  "
        f"held-out {found['accuracy']:.1%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--modes", nargs="+", default=["refresh", "barrier", "engine_drain"])
    parser.add_argument("--plain", action="store_true", help="the shipped model, an engine as it comes")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    if options.steps <= WARMUP:
        parser.error(f"--steps must be above {WARMUP}: the first ones are not counted")
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = "builtin:tiny-math" if options.plain else str(grow(Path(folder) / "model"))
        requests = 256 if options.plain else REQUESTS
        for seed in options.seeds:
            rounds.append({"seed": seed})
            for mode in ["sync", *options.modes]:
                rounds[-1][mode] = run(mode, seed, options.steps, requests, model, Path(folder))
                show(mode, seed, rounds[-1][mode])
    ratios = {}
    for mode in options.modes:
        listed = [item[mode]["samples_per_second"] / item["sync"]["samples_per_second"] for item in rounds]
        change = fmean(item[mode]["accuracy"] - item["sync"]["accuracy"] for item in rounds)
        ratios[mode] = {"rounds": listed, "median": median(listed), "accuracy_points": 100 * change}
        shown = ", ".join(f"{value:.2f}" for value in listed)
        print(
            f"{mode} / sync, trained samples per second: {median(listed):.2f}x (rounds: {shown}); "
            f"held-out accuracy {100 * change:+.1f} points on average"
        )
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["_run"]:
        print(json.dumps(asyncio.run(run_here(sys.argv[3:], Path(sys.argv[2])))))
    else:
        main()
