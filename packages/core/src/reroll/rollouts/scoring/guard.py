"""What a verifier started ends with its worker, also where the controller is no more and cannot see to it.

The system kills a worker with its controller at once, and a worker that keeps the interpreter lock could do nothing for
its end anyhow. So each has a guard: a process forked from it that waits for its end. Not had: a program in a session of
its own that also has an environment of its own, or on a platform that does not show environments; and anything after a
verifier killed the guard.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from contextlib import suppress

from reroll.rollouts.scoring.leftovers import end_leftovers

FILES = 256
"""More than a worker has open when it starts."""
LOOK_SECONDS = 0.5
"""Between two looks for a worker, where the system does not tell of its end."""


def start_guard(mark: str) -> None:
    """Forks the guard of this process, which must lead its process group. Without effect where no process can be
    forked."""
    worker = os.getpid()
    with suppress(OSError), warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads, whose locks nobody would open: the guard takes none.
        warnings.simplefilter("ignore", DeprecationWarning)
        # A grandchild: a verifier that waits for all of its children must not wait for this one.
        if child := os.fork():
            os.waitpid(child, 0)
            return
        try:
            if os.fork() == 0:
                _guard(worker, mark)
        finally:
            os._exit(0)


def _guard(worker: int, mark: str) -> None:
    """It stays in the worker's group, so that whoever kills that needs not know of it."""
    ended = _end_of(worker)
    # The connection among them, which the worker alone may hold open.
    os.closerange(0, ended or FILES)
    os.closerange(ended + 1, FILES)
    if ended:
        select.select([ended], [], [])
    else:
        while _runs(worker):
            time.sleep(LOOK_SECONDS)
    end_leftovers(mark)
    os.killpg(0, signal.SIGKILL)


def _end_of(process: int) -> int:
    """A file descriptor that can be read once the process has ended; 0 where there is none (not Linux)."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return 0


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def reap(group: int) -> None:
    """Takes note of the ended processes of a group, where their parents are gone and this process has inherited them:
    in a container it may be the first one, and they would stay."""
    with suppress(OSError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            continue
