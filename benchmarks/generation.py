"""What `reroll generate` promises, each as numbers of one run.

    python benchmarks/generation.py [resume] [throughput] [scale] [training] [--quick] [--json FILE]

resume      500 tasks x 4 trials on the built-in model, killed five times at random and gone on with, and as three
            shards of which one is killed and one merged twice; against an unbroken run. Greedy trials: are summary and
            index equal byte for byte? Sampled ones: are seeds equal, and how many responses are other ones?
throughput  tokens per second of `reroll generate` as a share of what the engine gives to the same requests, as many at
            a time, with nothing around it; pairs in turn, medians. `short`: the additions of configs/generate.toml, 5
            tokens an answer; `long`: answers of many lengths, 91 tokens on average.
scale       100,000 tasks x 4 trials on an engine that only waits: memory at a fifth of the trials and at their end, and
            the time from the start of a process that goes on until its first request.
training    `reroll train` on the index against all tasks it was selected from, as many trained samples: held-out
            accuracy and generated tokens, over three seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reroll.api import (
    CommitCost,
    Completion,
    Engine,
    EngineContext,
    GenerationRequest,
    SamplingParams,
    VersionSpan,
    hookimpl,
)
from reroll.config import load_run_file
from reroll.generation.entries import Entry
from reroll.generation.program import run_generation
from reroll.generation.store import JOURNAL, read_journal, read_trace, traces_path
from reroll.models.files import resolve_model
from reroll.placement.local import LocalPlacement
from reroll.plugins import load_plugins
from reroll.rollouts.seeds import response_seed
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.tasks.arithmetic import Addition, ArithmeticConfig
from reroll.tasks.render import Renderer

CONFIGS = Path(__file__).parents[1] / "configs"
CONFIG = CONFIGS / "generate.toml"
GREEDY = ["generation.temperature=0", 'generation.band="[0, 1]"', "generation.training_run='configs/quickstart.toml'"]
SAMPLED = ['generation.band="[0, 1]"']
SHARDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["resume", "throughput", "scale", "training", []])
    parser.add_argument("--quick", action="store_true", help="few tasks: whether it runs, not what it says")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--child", nargs=3, metavar=("RESULTS", "TASKS", "TRIALS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        scale_child(Path(options.child[0]), int(options.child[1]), int(options.child[2]))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts or ["resume", "throughput", "scale", "training"]:
            found[part] = globals()[part](Path(folder) / part, options.quick)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


# Commands


def command(folder: Path, *more: str, sets: list[str]) -> list[str]:
    overrides = [f"generation.results_dir={str(folder)!r}", *sets]
    return [
        *(sys.executable, "-m", "reroll", "generate", str(CONFIG), *more),
        *(part for item in overrides for part in ("--set", item)),
    ]


def run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=CONFIGS.parent)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")


def lines(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(arguments: list[str], folder: Path, after: int) -> None:
    """Starts it, and kills the controller once the journal has so many lines more."""
    goal = lines(folder) + after
    program = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd=CONFIGS.parent
    )
    while lines(folder) < goal:
        if program.poll() is not None:
            raise SystemExit("the generation came to its end before it was killed")
        time.sleep(0.002)
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    while True:
        try:
            os.killpg(program.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


# resume


def resume(folder: Path, quick: bool) -> dict[str, Any]:
    tasks = 40 if quick else 500
    size = f'data.task_set={{ name = "addition", size = {tasks} }}'
    folder.mkdir()
    found: dict[str, Any] = {"tasks": tasks, "trials": 4 * tasks}
    for kind, sets in (("greedy", [*GREEDY, size]), ("sampled", [*SAMPLED, size])):
        run(command(folder / kind, sets=sets))
        kills(folder / f"{kind}-broken", sets, tasks)
        sharded(folder / f"{kind}-shards", sets, tasks)
        found[kind] = compare(folder, kind, tasks)
        told = ", ".join(f"{name} {value}" for name, value in found[kind].items())
        print(f"resume, {kind}: {told}", flush=True)
    return found


def kills(folder: Path, sets: list[str], tasks: int, times: int = 5) -> None:
    chance = random.Random(tasks)
    for _ in range(times):
        kill(command(folder, sets=sets), folder, chance.randint(1, 4 * tasks // (times + 2)))
    run(command(folder, sets=sets))


def sharded(folder: Path, sets: list[str], tasks: int) -> None:
    for number in range(1, SHARDS + 1):
        arguments = command(folder, "--shard", f"{number}/{SHARDS}", sets=sets)
        if number == 2:
            kill(arguments, folder / f"shard_{number}_of_{SHARDS}", tasks // 3)
        run(arguments)
    shards = [str(folder / f"shard_{number}_of_{SHARDS}") for number in (3, 1, 2, 3)]
    merging = [sys.executable, "-m", "reroll", "generate", "merge", *shards, "--output", str(folder / "index.parquet")]
    run([*merging, "--band", "[0, 1]", "--require-complete"])


def compare(folder: Path, kind: str, tasks: int) -> dict[str, Any]:
    whole, broken, shards = folder / kind, folder / f"{kind}-broken", folder / f"{kind}-shards"
    ours = attempts([whole])
    found: dict[str, Any] = {}
    for name, folders, table, index in (
        ("killed", [broken], broken / "summary.csv", broken / "index.parquet"),
        ("merged", sorted(shards.glob("shard_*")), shards / "index.summary.csv", shards / "index.parquet"),
    ):
        other = attempts(folders)
        once = Counter(key for part in folders for key in keys(part))
        assert set(once) == {(position, trial) for position in range(tasks) for trial in range(4)}, name
        assert set(once.values()) == {1}, f"{name}: trials that were counted twice"
        found[f"{name}_each_once"] = True
        found[f"{name}_seeds_equal"] = {key: seed for key, (seed, _) in ours.items()} == {
            key: seed for key, (seed, _) in other.items()
        }
        found[f"{name}_bytes_equal"] = [
            table.read_bytes() == (whole / "summary.csv").read_bytes(),
            index.read_bytes() == (whole / "index.parquet").read_bytes(),
        ]
        found[f"{name}_other_responses"] = sum(ours[key][1] != other[key][1] for key in ours)
        rows = zip((whole / "summary.csv").read_text().splitlines(), table.read_text().splitlines(), strict=True)
        found[f"{name}_other_rows"] = sum(one != two for one, two in rows)
    return found


def entries(folder: Path) -> Iterator[Entry]:
    def fail(text: str) -> None:
        raise SystemExit(text)

    return read_journal(folder, fail)


def keys(folder: Path) -> Iterator[tuple[int, int]]:
    return ((entry.position, entry.trial) for entry in entries(folder))


def attempts(folders: list[Path]) -> dict[tuple[int, int], tuple[int, list[int]]]:
    """Position and trial → seed, and sampled tokens."""
    found: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for folder in folders:
        for entry in entries(folder):
            trace = read_trace(folder, entry)
            assert trace is not None
            tokens = [token for node in trace["nodes"] if node["sampled"] for token in node["token_ids"]]
            found[entry.position, entry.trial] = (entry.seed, tokens)
    return found


# throughput


WORKLOADS: dict[str, dict[str, Any]] = {
    "short": {"tasks": 2500, "max_new_tokens": 16, "engine": {}},
    # Ends with a token that comes by chance: after 91 tokens on average, after 70 at the median, at 256 at the latest.
    "long": {"tasks": 400, "max_new_tokens": 256, "engine": {"eos_token_ids": [304]}},
}
CONCURRENT = 64


def throughput(folder: Path, quick: bool) -> dict[str, Any]:
    folder.mkdir()
    found: dict[str, Any] = {}
    for name, load in WORKLOADS.items():
        tasks = 20 if quick else load["tasks"]
        own, ours = list[float](), list[float]()
        for number in range(1 if quick else 3):
            own.append(asyncio.run(engine_alone(folder / f"{name}-{number}-alone", tasks, load)))
            ours.append(generated(folder / f"{name}-{number}", tasks, load))
        ratio = statistics.median(ours) / statistics.median(own)
        found[name] = {"ratio": ratio, "generate": ours, "engine": own}
        print(
            f"throughput, {name}: {statistics.median(ours):,.0f} tokens/s, {ratio:.3f} of the engine's own "
            f"{statistics.median(own):,.0f}",
            flush=True,
        )
    return found


async def engine_alone(logs: Path, tasks: int, load: dict[str, Any]) -> float:
    """The requests of a generation, as many at a time, with nothing around them."""
    logs.mkdir()
    files = resolve_model("builtin:tiny-math")
    renderer, task_set, placement = Renderer(files, None), Addition(ArithmeticConfig(size=tasks)), LocalPlacement()
    config = LocalEngineConfig.model_validate(load["engine"])
    engine = await LocalEngine.start(config, EngineContext("engine", files.directory, 0, placement, logs / "log"))
    slots, done = asyncio.Semaphore(CONCURRENT), list[Completion]()

    async def ask(request: GenerationRequest) -> None:
        try:
            done.append(await engine.generate(request))
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        for index in range(tasks):
            task = task_set.task(index)
            ids = list(renderer.render(task).token_ids)
            for trial in range(4):
                seed = response_seed(0, task.key, 0, trial, "generate")
                await slots.acquire()
                sampling = SamplingParams(max_new_tokens=load["max_new_tokens"], seed=seed)
                group.create_task(ask(GenerationRequest(f"{index}/{trial}", ids, sampling)))
    await engine.close()
    await placement.close()
    return speed([(item.timing, len(item.output_ids)) for item in done])


def generated(folder: Path, tasks: int, load: dict[str, Any]) -> float:
    engine = {"name": "local", **load["engine"]}
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in engine.items())
    sets = [
        f'data.task_set={{ name = "addition", size = {tasks} }}',
        f"generation.n_concurrent={CONCURRENT}",
        f"rollout.rollout_max_response_len={load['max_new_tokens']}",
        f"serving.engine={{ {options} }}",
    ]
    run(command(folder, sets=sets))
    made = []
    with traces_path(folder).open() as file:
        for line in file:
            trace = json.loads(line)
            made.append((trace["timing"], sum(len(node["token_ids"]) for node in trace["nodes"] if node["sampled"])))
    return speed(made)


def speed(made: list[tuple[dict[str, float], int]]) -> float:
    """Tokens per second from the first request to the last token."""
    seconds = max(timing["end"] for timing, _ in made) - min(timing["queued"] for timing, _ in made)
    return sum(tokens for _, tokens in made) / seconds


# scale


class Waiting(Engine):
    """Answers every request with the same tokens after a moment."""

    name = "waiting"
    first: float | None = None
    """When the first request came, since the epoch."""

    @classmethod
    async def start(cls, config: Any, context: EngineContext) -> Waiting:
        engine = cls(config)
        engine.address = context.name
        return engine

    async def generate(self, request: GenerationRequest) -> Completion:
        if Waiting.first is None:
            Waiting.first = time.time()
        await asyncio.sleep(0.002)
        tokens = [7] * 20
        spans = [VersionSpan(0, 0, len(tokens))]
        return Completion(request.request_id, tokens, [-0.1] * 20, spans, "stop", request.sampling.seed)

    async def pause(self, mode: str = "in_place") -> None: ...

    async def resume(self) -> None: ...

    async def flush_cache(self) -> None: ...

    async def stage_weights(self, buckets: Any) -> None: ...

    async def commit_weights(self, version: int, recompute: bool = False) -> CommitCost:
        return CommitCost()

    async def weight_version(self) -> int:
        return 0

    async def weights_digest(self) -> str:
        return ""

    async def health(self) -> dict[str, Any]:
        return {}

    async def abort(self, request_id: str | None = None) -> None: ...

    async def close(self) -> None: ...


@hookimpl
def reroll_engines() -> list[type[Engine]]:
    return [Waiting]


def scale_child(results: Path, tasks: int, trials: int) -> None:
    """A whole generation in this process; prints when its first request came."""
    plugins = load_plugins()
    plugins.register(SimpleNamespace(reroll_engines=reroll_engines, __name__="waiting"), "waiting", "benchmark")
    overrides = [
        f"generation.results_dir={str(results)!r}",
        f"generation.n_trials={trials}",
        f'data.task_set={{ name = "addition", high = 400, size = {tasks}, verifier = "exact_match" }}',
        'data.verifiers=["exact_match"]',
        'serving.engine="waiting"',
    ]
    loaded = load_run_file(CONFIG, overrides, plugins)
    asyncio.run(run_generation(loaded, None))
    print(json.dumps({"first": Waiting.first, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def scale(folder: Path, quick: bool) -> dict[str, Any]:
    tasks, trials = (300 if quick else 100_000), 4
    arguments = [sys.executable, __file__, "--child", str(folder), str(tasks), str(trials)]
    began, memory = time.time(), dict[float, float]()
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=CONFIGS.parent)
    goals, goal = [0.2, 0.4, 0.6, 0.8, 0.98], tasks * trials
    try:
        while goals:
            if program.poll() is not None:
                raise SystemExit("the generation came to its end before it was killed")
            if lines(folder) >= goals[0] * goal:
                memory[goals.pop(0)] = resident(program.pid)
            time.sleep(0.002 if quick else 0.5)
    finally:
        program.kill()
        program.wait()
    seconds = time.time() - began
    before = lines(folder)
    began = time.time()
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=CONFIGS.parent, check=True)
    first = json.loads(done.stdout.splitlines()[-1])["first"]
    if first is None:
        raise SystemExit("nothing was left to go on with")
    start = first - began
    found = {
        "tasks": tasks,
        "trials": goal,
        "resident_mb": {f"{share:.0%}": value for share, value in memory.items()},
        "memory_ratio": memory[0.98] / memory[0.2],
        "trials_per_second": before / seconds,
        "finished_before_resume": before,
        "resume_seconds_to_first_request": start,
        "journal_mb": size_of(folder / JOURNAL) / 1e6,
        "traces_mb": size_of(traces_path(folder)) / 1e6,
    }
    print(
        f"scale: {goal:,} trials, {found['trials_per_second']:,.0f} a second; {memory[0.2]:,.0f} MB at a fifth, "
        f"{memory[0.98]:,.0f} MB at the end ({found['memory_ratio']:.2f}x); with {before:,} finished the first request "
        f"comes {start:.1f} s after the start",
        flush=True,
    )
    return found


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def resident(pid: int) -> float:
    """Memory of the process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# training


def training(folder: Path, quick: bool) -> dict[str, Any]:
    folder.mkdir()
    tasks, collections = (60, 2) if quick else (500, 6)
    base = f'{{ name = "addition", size = {tasks} }}'
    run(command(folder / "measured", sets=[f"data.task_set={base}"]))
    index = f'{{ name = "index", path = "{folder / "measured" / "index.parquet"}" }}'
    selected = json.loads((folder / "measured" / "summary.json").read_text())["selected"]
    found: dict[str, Any] = {"tasks": tasks, "selected": selected, "all": [], "index": []}
    for seed in range(1 if quick else 3):
        for name, task_set in (("all", base), ("index", index)):
            output = folder / f"{name}-{seed}"
            overrides = [
                f"data.task_set={task_set}",
                f"output.dir={str(output)!r}",
                "output.export_hf=false",
                f"run.seed={seed}",
                f"rollout.num_rollout={collections}",
                # Groups that agree teach nothing: more are drawn, so that both train on as many samples.
                "rollout.over_sampling_factor=8.0",
            ]
            path = CONFIGS / "quickstart-sync.toml"
            sets = [part for item in overrides for part in ("--set", item)]
            run([sys.executable, "-m", "reroll", "train", str(path), *sets])
            summary = json.loads((output / "summary.json").read_text())
            found[name].append(
                {
                    "accuracy": summary["eval"]["after"]["all"]["accuracy"],
                    "trained_samples": summary["trained_samples"],
                    "generated_tokens": summary["generated_tokens"],
                }
            )
            shutil.rmtree(output)
    means = {
        name: {key: statistics.fmean(item[key] for item in found[name]) for key in found[name][0]}
        for name in ("all", "index")
    }
    ratio = means["index"]["generated_tokens"] / means["all"]["generated_tokens"]
    print(
        f"training: held-out accuracy {means['index']['accuracy']:.1%} on the {selected} selected tasks, "
        f"{means['all']['accuracy']:.1%} on all {tasks}, after {means['index']['trained_samples']:,.0f} and "
        f"{means['all']['trained_samples']:,.0f} samples; {ratio:.2f}x of the generated tokens; a run each: "
        f"{[item['accuracy'] for item in found['index']]} and {[item['accuracy'] for item in found['all']]}",
        flush=True,
    )
    return {**found, "means": means, "generated_tokens_ratio": ratio}


if __name__ == "__main__":
    main()
