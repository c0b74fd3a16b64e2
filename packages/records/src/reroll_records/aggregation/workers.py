"""Functions called in processes of their own. The standard library alone.

Not `multiprocessing`: its children are forks, which a process with threads must not have, or import the caller's main
module, which a plain script does not survive. These are new interpreters that import the function's module and nothing
of the caller's; they end when their input does, so none outlives its parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from reroll_records.store.layout import StoreError

Result = TypeVar("Result")


def cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_processes(function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], processes: int) -> list[Result]:
    """`function(*each)` of all arguments, in their order; in this process if one is enough.

    Args:
        function: of a module's top level; it, arguments and results can be pickled.

    Raises:
        StoreError: a process ended before it answered.
        Exception: what the function raised first.
    """
    processes = min(processes, len(arguments))
    if processes <= 1:
        return [function(*each) for each in arguments]
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in range(len(arguments)):
        waiting.put(number)
    results: dict[int, Result] = {}
    children = [_start() for _ in range(processes)]

    def converse(child: subprocess.Popen[bytes]) -> None:
        try:
            while True:
                number = waiting.get_nowait()
                results[number] = _ask(child, function, arguments[number])
        except Empty:
            return
        except BaseException:
            for other in children:
                other.kill()  # nobody waits for the rest
            raise

    try:
        with ThreadPoolExecutor(processes) as threads:
            futures = [threads.submit(converse, child) for child in children]
            try:
                failures = [error for future in futures if (error := future.exception()) is not None]
            except BaseException:
                for child in children:
                    child.kill()
                raise
    finally:
        for child in children:
            _end(child)
    if failures:
        raise min(failures, key=lambda error: isinstance(error, _Ended))
    return [results[number] for number in range(len(arguments))]


class _Ended(StoreError):
    """Of all failures the least telling: a process that was stopped because another failed raises it, too."""


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-c", "from reroll_records.aggregation.workers import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _ask(child: subprocess.Popen[bytes], function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    assert child.stdin is not None and child.stdout is not None
    try:
        pickle.dump((function, arguments), child.stdin)
        child.stdin.flush()
        failed, answer = pickle.load(child.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        raise _Ended(
            f"a process that read the store ended with {child.wait()} before it was done; if the machine ran out of "
            "memory, give less memory or fewer processes"
        ) from None
    if failed:
        raise answer
    result: Result = answer
    return result


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None and child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    child.wait()
    child.stdout.close()


def serve() -> None:
    """What a process does: answers calls from its standard input until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent then ends this process
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # so that nothing printed gets between the answers
    while True:
        try:
            function, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = (False, function(*arguments))
        except Exception as error:
            answer = (True, error)
        pickle.dump(answer, answers)
        answers.flush()
