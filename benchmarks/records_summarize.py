"""Summarizing a store of inference records: how long it takes against a loop that does nothing but decode its lines,
what memory it takes, and whether twice the store takes twice as long.

    python benchmarks/records_summarize.py [--rows N] [--prompts N] [--siblings N] [--rounds N] [--engines NAME ...]
                                           [--folder DIR] [--json FILE]

The store is made of two lineages with two runs each and two attempts of each run, in the form that the writer gives. A
row of four siblings has about 1.5 KB. The loop is `orjson.loads` of every line, in one thread of a process of its own.
Each engine then summarizes the same store, in turn, in a process of its own: `standard` without orjson, `orjson` the
same with it, `duckdb`. Everything was read before, so that no disk is measured.

Memory is the resident memory of the process and all its children, added up twenty times a second: the largest sum.
With `--prompts` as large as `--rows` every group is of another prompt, and nothing can be pooled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

ENGINES = ("standard", "orjson", "duckdb")
LINEAGES = ("1" * 16, "2" * 16)
ATTEMPTS = 8

LOOP = """
import sys, time
from pathlib import Path
from orjson import loads
began = time.perf_counter()
for path in sorted(Path(sys.argv[1]).glob("*/*/records-*.jsonl")):
    with path.open("rb") as file:
        for line in file:
            loads(line)
print(time.perf_counter() - began)
"""
SUMMARIZE = """
import sys, time
from pathlib import Path
began = time.perf_counter()
from reroll_records.summary.summarize import summarize
summarize(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
print(time.perf_counter() - began)
"""


def key(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()


def manifest(number: int) -> dict[str, Any]:
    run = number // 2
    return {
        "kind": "manifest",
        "schema": 1,
        "source": "train",
        "run": {"name": f"run{run}", "id": f"id{run}", "attempt": f"attempt{number}", "fresh": True},
        "lineage": {"id": LINEAGES[run % 2], "files": {}},
        "protocol": {"deterministic_inference": False},
        "protocol_digest": key("protocol"),
        "rollout_seed": number,
        "started": 1.0,
    }


def response(index: int, rate: float, version: int, chance: random.Random) -> dict[str, Any]:
    reward = round(chance.random(), 2) if rate < 0 else float(chance.random() < rate)
    unknown = chance.random() < 0.02
    return {
        "index": index,
        "reward": reward,
        "reward_components": [{"name": "math", "score": reward, "weight": 1.0}],
        "validity": {"valid": None if unknown else True, "components": {"math": "unknown" if unknown else "ok"}},
        "response_tokens": chance.randrange(1, 4096),
        "status": "completed",
        "truncated": chance.random() < 0.05,
        "policy_versions": [version],
        "policy_scope": "start_checkpoint" if version == 0 else "run_version",
        "seed": chance.getrandbits(31),
    }


def write_attempt(root: Path, number: int, first: int, rows: int, prompts: int, siblings: int) -> None:
    """An attempt with groups `first` to `first + rows`; a tenth of the prompts has fractional rewards."""
    chance = random.Random(first)
    made = manifest(number)
    run = made["run"]
    folder = root / made["lineage"]["id"] / f"{run['name']}-{run['id']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"manifest-{run['attempt']}.json").write_text(json.dumps(made))
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    with (folder / f"records-{run['attempt']}.jsonl").open("w") as file:
        for group in range(rows):
            prompt = (first + group) % prompts
            rate = -1.0 if prompt % 10 == 0 else prompt % 5 / 4
            version = 10 * group // rows
            found = [response(index, rate, version, chance) for index in range(siblings)]
            observation = f"{chance.getrandbits(128):032x}"
            passed = len({item["reward"] for item in found}) > 1
            row = {
                "kind": "group",
                "schema": 1,
                "observation_id": observation,
                "task_key": key("task", prompt),
                "task_key_basis": "rendered prompt and targets",
                "input_key": key("input", prompt),
                "query_sha256": key("query", prompt),
                "prompt_token_sha256": key("tokens", prompt),
                "prepared_sample_id": f"train-{prompt}",
                "source_dataset": "train.jsonl",
                "source_row": prompt,
                "verifiers": ["math"] if prompt % 3 else ["code", "math"],
                "group_index": group,
                "rollout_id": group // 64,
                "group_size": siblings,
                "group_attempt": 0,
                "filter_decision": "passed" if passed else "filtered",
                "filter_reason": "" if passed else f"zero_std_{found[0]['reward']}",
                "responses_included": False,
                "responses": found,
                "time": 1.7e9 + group,
            }
            file.write(encode(row) + "\n")
            if passed and chance.random() < 0.95:
                left = {"kind": "disposition", "schema": 1, "observation_id": observation}
                left |= {"disposition": "consumed" if chance.random() < 0.9 else "expired", "staleness": 1}
                file.write(encode(left | {"time": 1.7e9 + group}) + "\n")


def make_stores(folder: Path, rows: int, prompts: int, siblings: int) -> tuple[Path, Path]:
    """A store, and one that has it and as much again: of other prompts, if a store's are all different."""
    small, large = folder / "store", folder / "double"
    each = rows // ATTEMPTS
    with ProcessPoolExecutor() as pool:
        calls = [
            pool.submit(
                write_attempt,
                small if number < ATTEMPTS else large,
                number,
                number * each,
                each,
                prompts if prompts < rows else 2 * rows,
                siblings,
            )
            for number in range(2 * ATTEMPTS)
        ]
        for call in calls:
            call.result()
    for path in small.glob("*/*/*"):
        target = large / path.relative_to(small)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    return small, large


def tree_memory(root: int) -> int:
    """Resident bytes of a process and its descendants."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                resident[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += resident.get(process, 0)
        waiting += [child for child, parent in parents.items() if parent == process]
    return total


def measured(program: str, arguments: list[str], hidden: Path | None = None) -> dict[str, float]:
    """Seconds that a program says it took, CPU time of its processes, and the most memory that they had together."""
    environment = dict(os.environ)
    if hidden is not None:
        environment["PYTHONPATH"] = f"{hidden}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env=environment)
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, tree_memory(child.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    watcher.join()
    if child.returncode:
        sys.exit(f"a measured process ended with {child.returncode}")
    return {"seconds": float(output), "cpu_seconds": used.ru_utime + used.ru_stime, "memory": peak}


def measure(store: Path, folder: Path, engines: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds; all are measured in turn."""
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "orjson.py").write_text("raise ImportError('hidden')\n")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("loop", *engines)}
    for _ in range(rounds):
        found["loop"].append(measured(LOOP, [str(store)]))
        for engine in engines:
            arguments = [str(store), str(folder / f"summary-{engine}"), "duckdb" if engine == "duckdb" else "standard"]
            found[engine].append(measured(SUMMARIZE, arguments, hidden if engine == "standard" else None))
    return {
        name: {
            **{field: median(each[field] for each in values) for field in ("seconds", "cpu_seconds")},
            "memory": max(each["memory"] for each in values),
        }
        for name, values in found.items()
    }


def show(name: str, found: dict[str, float], ratio: float, what: str) -> None:
    print(
        f"{name:<10}{found['seconds']:7.2f} s  {ratio:5.2f} {what}  {found['cpu_seconds']:7.2f} s of CPU  "
        f"{found['memory'] / 2**20:6.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="group rows of the store")
    parser.add_argument("--prompts", type=int, default=20_000, help="different prompts")
    parser.add_argument("--siblings", type=int, default=4, help="responses of a group")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--folder", type=Path, help="where the stores are made; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        small, large = make_stores(folder, options.rows, options.prompts, options.siblings)
        size = sum(path.stat().st_size for path in small.glob("*/*/records-*"))
        print(f"{options.rows:,} group rows, {size / 1e9:.2f} GB, {size / options.rows:,.0f} bytes a row", flush=True)
        found = measure(small, folder, options.engines, options.rounds)
        loop = found["loop"]["seconds"]
        show("loop", found["loop"], 1.0, "times the loop")
        for engine in options.engines:
            show(engine, found[engine], found[engine]["seconds"] / loop, "times the loop")
        for name in ("prompts.jsonl", "tokens.json", "summary.json"):
            if len({(folder / f"summary-{engine}" / name).read_bytes() for engine in options.engines}) > 1:
                sys.exit(f"the engines wrote different {name}")
        doubled = measure(large, folder, options.engines, options.rounds)
        print("twice the store")
        for engine in options.engines:
            show(engine, doubled[engine], doubled[engine]["seconds"] / found[engine]["seconds"], "times as long")
    if options.json:
        options.json.write_text(
            json.dumps({"rows": options.rows, "bytes": size, "store": found, "double": doubled}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
