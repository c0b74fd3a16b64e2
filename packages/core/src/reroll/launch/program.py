"""What the programs of all runs have in common: their log, how they are stopped, how they handle memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ONE_SIGNAL_SECONDS = 0.5
"""A batch system that ends a job signals all its processes, and who started the run passes the signal on to it: a
SIGTERM that follows so soon is the same one."""


def log_into(path: Path) -> None:
    """Has everything that is logged from now on at the end of a file, whose folder is there."""
    logging.raiseExceptions = False  # a full disk is told once, and not at every line that it takes
    logging.basicConfig(filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def collect_less_garbage() -> None:
    """Thousands of groups are alive at once, and the collector's passes over them were half of the controller's time.
    What is loaded by now stays; new objects are looked at less often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def stop_on_signals(work: asyncio.Task[None], tell: Callable[[str], None]) -> list[signal.Signals]:
    """The first Ctrl-C or SIGTERM ends the work cleanly, a second one everything at once. Gives the list in which
    the signals are noted."""
    loop = asyncio.get_running_loop()
    stopped: list[signal.Signals] = []
    heard: list[float] = []

    def stop(received: signal.Signals) -> None:
        tell(f"{received.name}: ending the run; once more ends it at once")
        work.cancel()

    def received(number: int, _: object) -> None:
        now = time.monotonic()
        if stopped and number == signal.SIGTERM and now - heard[0] < ONE_SIGNAL_SECONDS:
            return
        heard[:] = heard or [now]
        stopped.append(signal.Signals(number))
        if len(stopped) > 1:
            os._exit(128 + number)  # workers end when their connection closes
        loop.call_soon_threadsafe(stop, stopped[0])

    # Not the event loop's own handlers: the second signal must count above all when a plugin blocks the loop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, received)
    return stopped


def forget_cancellation() -> None:
    """The request to stop was heard: what follows may wait and use timeouts again."""
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()
