"""Verifiers that behave in every way that scoring must cope with; imported by its worker processes."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from reroll.api import Config, Message, Node, Task, Trace, Verdict, Verifier

LEAKED: list[bytearray] = []


def task(**targets) -> Task:
    return Task("Say it.", targets, "cases.jsonl", 0, "0")


def trace(text: str, of: Task, index: int = 0) -> Trace:
    message: Message = {"role": "assistant", "content": text}
    return Trace(f"trace-{index}", of, [Node(None, message, True, [1], [True])], is_completed=True)


def deeper(depth: int) -> Verdict:
    return deeper(depth + 1)


def bred_seconds(controller: int) -> int:
    """What programs that outlive their verifier sleep, by which the process that scores knows its own."""
    return 1_000_000 + controller


def misbehave(text: str) -> object:
    """What the completion asks for, or None."""
    match text:
        case "hang":
            while True:
                pass
        case "hang in C":
            re.match(r"(a+)+$", "a" * 64 + "!")  # keeps the interpreter lock
        case "exit":
            os._exit(3)
        case "exit quietly":
            os._exit(0)
        case "sys.exit":
            sys.exit("no more")
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "speak and die":
            print("last words of a verifier", flush=True)
            os._exit(4)
        case "print and hang":
            print("what it printed")
            while True:
                pass
        case "memory":
            return Verdict(float(len(bytearray(8 << 30))))
        case "leak":
            LEAKED.append(bytearray(50 << 20))
            return Verdict(float(len(LEAKED)))
        case "close and raise":
            sys.stderr.close()
            raise ValueError("cannot judge this")
        case "raise":
            raise ValueError("cannot judge this")
        case "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            while True:
                pass
        case "sleep":
            time.sleep(600)
        case "power":
            return Verdict(float(len(str(7 ** (10**9)))))  # in C, with the interpreter lock
        case "eat":
            while True:
                LEAKED.append(bytearray(64 << 20))
        case "breed":
            # Out of the worker's group, and of the sight of whoever follows parents.
            sleep = f"setsid sleep {bred_seconds(os.getppid())} &"
            for _ in range(20):
                subprocess.Popen(["sh", "-c", f"{sleep} {sleep}"], start_new_session=True).wait()
            while True:
                pass
        case "close everything":
            os.closerange(0, 1 << 16)
            return Verdict(1.0)
        case "recurse":
            sys.setrecursionlimit(10**9)
            return deeper(0)
        case "ignore signals":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            while True:
                time.sleep(1)
        case "return text":
            return "1.0"
        case "return nan":
            return Verdict(float("nan"))
        case "return inf":
            return Verdict(float("inf"))
        case "return bool":
            return Verdict(True)
        case "return None":
            return None
        case "return state":
            return Verdict(1.0, state="great")
        case "return components":
            return Verdict(1.0, {"parsed": "yes"})
        case "return int":
            return Verdict(1)
        case "slow":
            time.sleep(0.6)
    return None


class Plain(Verifier):
    name = "plain"

    def score(self, task, trace):
        if trace.completion == "count":
            task.metadata["calls"] = task.metadata.get("calls", 0) + 1
            return Verdict(float(task.metadata["calls"]))
        found = misbehave(trace.completion)
        if trace.completion.startswith("return") or found is not None:
            return found
        return Verdict(float(trace.completion == task.targets["plain"]))


class SlowImport(Verifier):
    name = "slow_import"

    def warm_up(self):
        time.sleep(1.2)

    def score(self, task, trace):
        return Verdict(1.0)


class CountConfig(Config):
    folder: str = ""
    """Where a file a process is left."""


class DiesInImport(Verifier):
    name = "dies_in_import"
    Config = CountConfig

    def warm_up(self):
        (Path(self.config.folder) / str(os.getpid())).touch()
        os._exit(5)

    def score(self, task, trace):
        return Verdict(1.0)


class RaisesInImport(Verifier):
    name = "raises_in_import"

    def warm_up(self):
        raise ImportError("no module named 'abacus'")

    def score(self, task, trace):
        return Verdict(1.0)


class Grouped(Verifier):
    name = "grouped"

    def score_group(self, task, traces):
        misbehave(traces[0].completion)
        if traces[0].completion == "one short":
            return [Verdict(0.0)] * (len(traces) - 1)
        longest = max(len(trace.completion) for trace in traces)
        return [Verdict(float(len(trace.completion) == longest)) for trace in traces]


class Service(Verifier):
    name = "service"
    concurrency = 3
    now = most = 0

    async def score(self, task, trace):
        cls = type(self)
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        try:
            text = trace.completion
            if text == "hang":
                await asyncio.sleep(600)
            if text == "stubborn":
                until = time.monotonic() + 0.8
                while time.monotonic() < until:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.2)
            found = misbehave(text)
            if found is not None:
                return found
            await asyncio.sleep(0.01)
            return Verdict(1.0, state="completed")
        finally:
            cls.now -= 1


class Both(Verifier):
    name = "both"

    def score(self, task, trace):
        return Verdict(1.0)

    def score_group(self, task, traces):
        return [Verdict(1.0) for _ in traces]


class Forgotten(Verifier):
    """Returns an awaitable from a plain `score`."""

    name = "forgotten"

    def score(self, task, trace):
        return self._later()

    async def _later(self):
        return Verdict(1.0)
