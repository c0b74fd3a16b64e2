"""Opening a replay buffer over many saved rollouts: how long it takes against a loop that does nothing but read and
parse their lines, and what memory the handles take.

    python benchmarks/replay_buffer.py [--records N] [--bytes N] [--rounds N] [--folder DIR] [--json FILE]

The rollouts are lines as a run saves them, of two turns each, 500 a step, made of a thousand different ones; every line
has an id of its own. The capacity is their number, so that each becomes a handle. Loop and buffer run in turns, each in
a process of its own on one core, over files that were written just before, so that no disk is measured. The loop calls
the parser that the buffer calls. Memory is the resident memory of the process after opening minus before.

Fails where the buffer takes more than 20 s or 200 MB for each 200,000 records.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

A_STEP = 500
DIFFERENT = 1000
SECONDS, MEGABYTES, FOR_RECORDS = 20.0, 200.0, 200_000
PLACEHOLDER = "0" * 32

BEGIN = """
import os, sys, time
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""
LOOP = """
from pydantic_core import from_json
before, began = resident(), time.perf_counter()
for path in Path(sys.argv[1]).glob("step_*/train_rollouts.jsonl"):
    with path.open("rb") as file:
        for line in file:
            from_json(line, cache_strings="keys")
print(time.perf_counter() - began, resident() - before)
"""
OPEN = """
from reroll import Derivation
from reroll.replay.buffer import ReplayBuffer
class Final(Derivation):
    name = "final"
    def prompt(self, record, anchor):
        return []
before, began = resident(), time.perf_counter()
count = int(sys.argv[2])
found = ReplayBuffer(
    Path(sys.argv[1]), Final(), source_envs=None, capacity=count, online=False, seed=0, warn=sys.exit
)
took = time.perf_counter() - began
if len(found) != count:
    sys.exit(f"the buffer offers {len(found)} of {count} records")
print(took, resident() - before)
"""


def saved_line(chance: random.Random, size: int) -> str:
    """A rollout of about `size` bytes: a response takes some 30 bytes a token."""
    prompt = [chance.randrange(150_000) for _ in range(100)]
    tokens = [chance.randrange(150_000) for _ in range(max(1, (size - 2400) // 34))]
    text = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz     ") for _ in range(len(tokens)))
    question = {"role": "user", "content": f"What is {chance.random()} + {chance.random()}?"}
    shared = {"usage": None, "origin": None}
    nodes = [
        {"parent": None, "message": question, "sampled": False, "token_ids": prompt, "mask": [False] * len(prompt)}
        | {"logprobs": [], "weight_versions": [], "finish_reason": None, "seed": None, **shared},
        {"parent": 0, "message": {"role": "assistant", "content": text}, "sampled": True, "token_ids": tokens}
        | {"mask": [True] * len(tokens), "logprobs": [-chance.random() for _ in tokens], "finish_reason": "stop"}
        | {"weight_versions": [[3, 0, len(tokens)]], "seed": chance.getrandbits(60), **shared},
    ]
    task = {"prompt": [question], "targets": {"math": "4"}, "source_dataset": "train.jsonl", "source_row": 7}
    reward = float(chance.random() < 0.5)
    stamp: dict[str, Any] = {
        "kind": "train",
        "env_name": chance.choice(["sums", "products"]),
        "group_id": PLACEHOLDER[:8],
    }
    stamp |= {"policy_version": 3, "is_filtered": False, "reward": reward}
    record = {
        "schema": 1,
        "id": PLACEHOLDER,
        "task": task | {"prepared_sample_id": "p7", "tools": [], "metadata": {}},
        "nodes": nodes,
        "rewards": {"math": reward},
        "metrics": {},
        "info": {"reroll": stamp},
        "is_completed": True,
        "stop_condition": "stop",
        "errors": [],
        "timing": {"start": 1.7e9, "end": 1.7e9 + chance.random()},
    }
    return json.dumps(record)


def write_steps(folder: Path, records: int, size: int) -> int:
    """Writes the rollouts; gives their bytes."""
    chance = random.Random(0)
    lines = [saved_line(chance, size).split(f'"{PLACEHOLDER}"') for _ in range(min(DIFFERENT, records))]
    written = 0
    for first in range(0, records, A_STEP):
        step = folder / f"step_{first // A_STEP}"
        step.mkdir()
        with (step / "train_rollouts.jsonl").open("w") as file:
            for number in range(first, min(first + A_STEP, records)):
                before, after = lines[number % len(lines)]
                written += file.write(f'{before}"{number:032x}"{after}\n')
    return written


def measured(program: str, *arguments: str) -> tuple[float, float]:
    """Seconds and bytes that a program says it took, in a process of its own."""
    command = [sys.executable, "-c", BEGIN + program, *arguments]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"a measured process ended with {done.returncode}: {done.stderr[-2000:]}")
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=FOR_RECORDS)
    parser.add_argument("--bytes", type=int, default=10_000, help="of a record, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the rollouts are made; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        size = write_steps(Path(name), options.records, options.bytes)
        print(
            f"{options.records:,} records, {size / 1e9:.2f} GB, {size / options.records:,.0f} bytes a record",
            flush=True,
        )
        for _ in range(options.rounds):
            loop, _ = measured(LOOP, name)
            opening, memory = measured(OPEN, name, str(options.records))
            rounds.append({"loop_seconds": loop, "seconds": opening, "ratio": opening / loop, "memory_bytes": memory})
            print(f"loop {loop:.2f} s, buffer {opening:.2f} s, {memory / 1e6:.0f} MB", flush=True)
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    print(
        f"opening takes {found['ratio']:.2f} times a loop that reads and parses: {found['seconds']:.2f} s, "
        f"{1e6 * found['seconds'] / options.records:.0f} microseconds and "
        f"{found['memory_bytes'] / options.records:.0f} bytes of memory a record"
    )
    if options.json:
        numbers = {"records": options.records, "bytes": size, "rounds": rounds, **found}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    share = max(1.0, options.records / FOR_RECORDS)
    if found["seconds"] > SECONDS * share or found["memory_bytes"] > MEGABYTES * 1e6 * share:
        sys.exit(f"more than {SECONDS * share:.0f} s or {MEGABYTES * share:.0f} MB")


if __name__ == "__main__":
    main()
