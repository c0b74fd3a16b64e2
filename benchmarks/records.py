"""What recording costs a run: the asynchronous quickstart with and without inference records, in turns.

    python benchmarks/records.py [--pairs N] [--steps N] [--responses off|all] [--json FILE]

A pair is one process of each, with one seed, the order alternating. Printed is the ratio of trained samples per second,
recording to not recording, over the time from the first collection on; and, since a pair differs by more than what
recording costs on any machine that does something else, what recording itself takes: CPU seconds in the controller's
event loop and in the writer's thread, as shares of that time. Groups are small and quick here, of 8 responses of a few
tokens from a model of 0.37 M parameters: a run with longer responses records fewer of them in the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.toml"


def timed(function: Callable[..., Any], clock: Callable[[], float], spent: dict[str, float], name: str) -> Any:
    def call(*arguments: Any) -> Any:
        began = clock()
        try:
            return function(*arguments)
        finally:
            spent[name] += clock() - began

    return call


def run_here(settings: list[str], output: Path) -> dict[str, Any]:
    """A whole run in this process, and what the writer took of it."""
    from reroll.config import load_run_file
    from reroll.plan import size_problems
    from reroll.plugins import load_plugins
    from reroll.runner import run_training
    from reroll_records.writing.writer import StoreWriter

    spent = {"loop": 0.0, "thread": 0.0}
    methods: Any = StoreWriter
    for method in ("group_scored", "group_left"):
        setattr(methods, method, timed(getattr(methods, method), time.thread_time, spent, "loop"))
    methods._write = timed(methods._write, time.thread_time, spent, "thread")
    writers: list[StoreWriter] = []
    opened = methods.open

    def open_and_keep(writer: StoreWriter, context: Any) -> None:
        opened(writer, context)
        writers.append(writer)

    methods.open = open_and_keep
    asyncio.run(run_training(load_run_file(CONFIG, settings, load_plugins(), [size_problems]), time.perf_counter()))
    summary = json.loads((output / "summary.json").read_text())
    wall = summary["training_wall_seconds"]
    return {
        "samples_per_second": summary["trained_samples"] / wall,
        "wall_seconds": wall,
        "loop_seconds": spent["loop"],
        "thread_seconds": spent["thread"],
        "rows": sum(writer.written for writer in writers),
        "lost": sum(writer.dropped + writer.failed for writer in writers),
    }


def run(recording: bool, seed: int, steps: int, responses: str, folder: Path) -> dict[str, Any]:
    """One process with a whole run."""
    output = folder / f"{'with' if recording else 'without'}-{seed}"
    settings = [f"run.seed={seed}", f"rollout.num_rollout={steps}", f'output.dir="{output}"', "output.export_hf=false"]
    if recording:
        settings += ["records.enabled=true", f'records.root="{folder / "store"}"', f'records.responses="{responses}"']
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "_run", str(output), *settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"seed {seed}: {done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--responses", choices=["off", "all"], default="off")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    pairs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.pairs):
            order = (False, True) if number % 2 else (True, False)
            found = {on: run(on, number, options.steps, options.responses, Path(folder)) for on in order}
            on, off = found[True], found[False]
            ratio = on["samples_per_second"] / off["samples_per_second"]
            shares = {name: on[f"{name}_seconds"] / on["wall_seconds"] for name in ("loop", "thread")}
            pairs.append({"with": on, "without": off, "ratio": ratio, **shares})
            print(
                f"pair {number}: {on['samples_per_second']:.1f} samples/s with records, "
                f"{off['samples_per_second']:.1f} without: {ratio:.3f}x; {on['rows']} rows, {on['lost']} lost; of the "
                f"run's time {shares['loop']:.3%} in the event loop, {shares['thread']:.3%} in the writer's thread",
                flush=True,
            )
    ratio = median(pair["ratio"] for pair in pairs)
    cost = median(pair["loop"] + pair["thread"] for pair in pairs)
    rows = median(
        1e6 * (pair["with"]["loop_seconds"] + pair["with"]["thread_seconds"]) / pair["with"]["rows"] for pair in pairs
    )
    print(
        f"trained samples per second, with records / without: {ratio:.3f}x (median of {len(pairs)} pairs); recording "
        f"takes {cost:.3%} of the run's time, {rows:.0f} microseconds a row"
    )
    if options.json:
        numbers = {"pairs": pairs, "ratio": ratio, "share_of_time": cost, "microseconds_a_row": rows}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["_run"]:
        print(json.dumps(run_here(sys.argv[3:], Path(sys.argv[2]))))
    else:
        main()
