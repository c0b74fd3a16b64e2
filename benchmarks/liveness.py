"""Kills one process of a running asynchronous run at a random moment, again and again.

    python benchmarks/liveness.py [--moments 10] [--workers engine trainer scoring] [--seed 0] [--json FILE]

Every kill is a SIGKILL into a run of its own, up to a few seconds after its first collections. What must follow: the
run ends, or goes on where its part was replaced, within a minute, says which worker it was, and leaves no process and
no listening port behind. A run that goes on is let train five more collections, then interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.toml"
LOGS = {"engine": "engine-0.log", "trainer": "trainer.log", "scoring": "scoring-0.log"}
LIMIT = 60.0
"""Seconds in which a run must have ended or gone on."""
SPREAD = 4.0
"""The moment lies so many seconds after the second collection, at most."""
FURTHER = 5
"""Collections that show that a run has gone on."""


class Run:
    """A run whose lines on standard error can be waited for."""

    def __init__(self, output: Path) -> None:
        settings = [f'output.dir="{output}"', "rollout.num_rollout=100000", "eval.skip_eval_before_train=true"]
        command = [sys.executable, "-m", "reroll", "train", str(CONFIG)]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            self._new.put(line)
        self._new.put(None)

    def collections(self, count: int, timeout: float) -> bool:
        """Waits for so many collections from now on; False if the run ends or the time does."""
        end = time.monotonic() + timeout
        while count and (left := end - time.monotonic()) > 0:
            try:
                line = self._new.get(timeout=left)
            except queue.Empty:
                return False
            if line is None:
                return False
            count -= line.startswith("collection ")
        return not count

    def forget(self) -> None:
        """What was said so far counts for nothing that is waited for."""
        while not self._new.empty():
            self._new.get()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, log: str) -> psutil.Process | None:
        """The child that writes to that log."""
        for child in self.children():
            try:
                if os.readlink(f"/proc/{child.pid}/fd/2").endswith(log):
                    return child
            except OSError:
                continue
        return None


def ports(processes: list[psutil.Process]) -> set[int]:
    """TCP ports on which the processes listen."""
    found: set[int] = set()
    for process in processes:
        try:
            found |= {item.laddr.port for item in process.net_connections("tcp") if item.status == "LISTEN"}
        except psutil.Error:
            continue
    return found


def kill_once(kind: str, delay: float, output: Path) -> dict[str, Any]:
    """One run, one kill; what followed."""
    run = Run(output)
    try:
        if not run.collections(2, timeout=120):
            sys.exit("the run never trained:\n" + "\n".join(run.lines[-20:]))
        time.sleep(delay)
        everyone = [psutil.Process(run.process.pid), *run.children()]
        listening = ports(everyone)
        victim = run.child(LOGS[kind])
        if victim is None:
            sys.exit(f"no process writes {LOGS[kind]}")
        before, logged = len(run.lines), len(log_lines(output))
        began = time.monotonic()
        run.forget()
        victim.kill()
        recovered = run.collections(FURTHER, LIMIT)
        seconds = time.monotonic() - began
        ended = run.process.poll() is not None or not recovered
        everyone += [child for child in (run.children() if run.process.poll() is None else []) if child not in everyone]
        if recovered:
            run.process.send_signal(signal.SIGINT)
        try:
            code = run.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return {"kind": kind, "outcome": "hangs", "seconds": LIMIT, "good": False, "reason": run.lines[-1]}
        seconds = time.monotonic() - began if ended else seconds
        _, alive = psutil.wait_procs(everyone, timeout=20)
        named = f"worker {LOGS[kind].removesuffix('.log')!r}"
        told = [line for line in run.lines[before:] + log_lines(output)[logged:] if named in line]
        left = ports(alive)
        return {
            "kind": kind,
            "delay": delay,
            "outcome": "ended" if ended else "recovered",
            "exit_code": code,
            "seconds": seconds,
            "reason": told[0] if told else "",
            "processes_left": len(alive),
            "ports_before": len(listening),
            "ports_left": len(left),
            # Only scoring workers are replaced; a run that lost another worker must not end as a success.
            "good": bool(told)
            and (kind == "scoring" if recovered else code not in (0, None))
            and seconds <= LIMIT
            and not alive
            and not left,
        }
    finally:
        if run.process.poll() is None:
            run.process.kill()


def log_lines(output: Path) -> list[str]:
    log = output / "run.log"
    return log.read_text().splitlines() if log.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--workers", nargs="+", choices=list(LOGS), default=list(LOGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.moments):
            for kind in options.workers:
                found.append(kill_once(kind, moments.uniform(0, SPREAD), Path(folder) / f"{number}-{kind}"))
                item = found[-1]
                verdict, how = "good" if item["good"] else "BAD ", f"{kind:<8} {item['outcome']:<9}"
                print(f"{verdict} {how} after {item['seconds']:5.1f} s: {item['reason'][:110]}", flush=True)
    good = sum(item["good"] for item in found)
    outcomes = Counter((item["kind"], item["outcome"]) for item in found)
    print(f"{good}/{len(found)} good; " + ", ".join(f"{kind} {how}: {n}" for (kind, how), n in outcomes.items()))
    if options.json:
        options.json.write_text(json.dumps({"good": good, "kills": found}, indent=2) + "\n")
    sys.exit(good != len(found))


if __name__ == "__main__":
    main()
