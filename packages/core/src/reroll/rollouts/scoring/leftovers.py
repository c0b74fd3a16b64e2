"""Processes that a verifier started and that outlived its worker.

The worker's process group dies with it. What left the group, such as a program in a session of its own, still carries
the worker's mark in the environment that it inherited, and is found by that where the system shows it (Linux).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "REROLL_SCORING_MARK"
ENDING_SECONDS = 2.0
"""For which processes are looked for that start others faster than they are found."""


def end_leftovers(mark: str, processes: Path = Path("/proc")) -> int:
    """Kills every process that has `VARIABLE=mark` in its environment, and those that they start meanwhile; gives how
    many there were. One that was started with an environment of its own making is not found."""
    wanted = f"{VARIABLE}={mark}".encode()
    killed: set[str] = set()
    until = time.monotonic() + ENDING_SECONDS
    while True:
        found = {name for name in _numbers(processes) if _kill(processes, name, wanted)}
        killed |= found
        if not found or time.monotonic() > until:
            return len(killed)


def _numbers(processes: Path) -> list[str]:
    try:
        return [name for name in os.listdir(processes) if name.isdigit() and name != str(os.getpid())]
    except OSError:
        return []


def _kill(processes: Path, name: str, wanted: bytes) -> bool:
    """Whether the process was a marked one, which is killed then."""
    try:
        if wanted not in (processes / name / "environ").read_bytes().split(b"\0"):
            return False  # a zombie's is empty
    except OSError:
        return False  # it has ended, or is another user's
    with suppress(OSError):
        os.kill(int(name), signal.SIGKILL)
    return True
