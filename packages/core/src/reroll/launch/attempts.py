"""The starts of a run in its folder: one at a time, each of them kept, and not more than were allowed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reroll.api import RerollError, counted
from reroll.config.atomic import write_whole

FILE = "attempts.json"
LOCK = "run.lock"
LOOKS, LOOK_SECONDS = 10, 0.02


@dataclass(frozen=True)
class Attempt:
    """One start.

    Attributes:
        number: counted from 1.
        attempt: its id.
        started: UTC, ISO 8601.
        from_step: of the checkpoint that it goes on from, None where it begins.
    """

    number: int
    attempt: str
    started: str
    pid: int
    host: str
    from_step: int | None


class AttemptsError(RerollError, ValueError):
    """A run may not be started in its folder now."""


def register_attempt(
    output: Path, attempt: str, from_step: int | None, max_retries: int, warn: Callable[[str], None]
) -> Attempt:
    """Adds a start to `<output>/attempts.json`. AttemptsError, before anything is touched, if there were as many as
    `launch.max_retries` allows. The caller holds `run_lock`.

    Args:
        from_step: of the checkpoint that it goes on from.
        warn: told of a file that cannot be read; it is kept under another name, and counting begins anew.
    """
    attempts, fault = _read(output / FILE)
    check_starts(output, len(attempts), max_retries)
    if fault is not None:
        aside = _free_name(output / f"{FILE}.unreadable")
        (output / FILE).rename(aside)
        warn(f"{output / FILE} cannot be read ({fault}): it is kept as {aside.name}, and starts are counted anew")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    number = max((item.number for item in attempts), default=0) + 1
    new = Attempt(number, attempt, started, os.getpid(), socket.gethostname(), from_step)
    _write(output / FILE, [*attempts, new])
    return new


def check_starts(output: Path, starts: int, max_retries: int) -> None:
    """AttemptsError if another start would be one more than `launch.max_retries` allows."""
    if 0 <= max_retries <= starts:
        raise AttemptsError(
            f"launch.max_retries = {max_retries}: the run in {output} was started {counted(starts, 'time')}, the first "
            "one included; raise it, or give another output.dir"
        )


def read_attempts(output: Path) -> list[Attempt]:
    """The starts of the run in that folder, oldest first; AttemptsError where the file is no list of them."""
    attempts, fault = _read(output / FILE)
    if fault is not None:
        raise AttemptsError(f"{output / FILE} cannot be read: {fault}")
    return attempts


@contextmanager
def run_lock(output: Path, warn: Callable[[str], None], key: str = "output.dir", file: str = LOCK) -> Iterator[None]:
    """Holds the folder for one process, until it leaves or dies; AttemptsError if another one has it.

    Args:
        warn: told if the file system knows no locks: then nothing keeps a second start away.
        key: of the run file, that says the folder.
        file: that is locked.
    """
    path = output / file
    # Workers are other programs and do not inherit the descriptor: the lock ends with this process.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise AttemptsError(f"{key}: {path} cannot be opened: {error.strerror}") from None
    try:
        try:
            _take(descriptor)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise AttemptsError(
                    f"{key}: another run is using {output} ({_holder(path)}); wait for its end, or give another folder"
                ) from None
            warn(
                f"{output} is on a file system without locks ({error.strerror}): nothing keeps a second start in it "
                "away"
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    """Whoever only looks whether the folder is held (`holder`) has the lock for a moment."""
    for _ in range(LOOKS):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder(output: Path, file: str = LOCK) -> str | None:
    """Who uses the folder now, as `process N on HOST`; None where nobody does, or where the file system knows no
    locks."""
    path = output / file
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip() or "it has not said who it is"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _read(path: Path) -> tuple[list[Attempt], str | None]:
    """The attempts, or why there are none to read."""
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, list):
            return [], f"it holds {type(found).__name__}, not a list"
        return [_attempt(item) for item in found], None
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise AttemptsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        return [], str(error)


def _attempt(item: Any) -> Attempt:
    kinds = {"number": int, "attempt": str, "started": str, "pid": int, "host": str, "from_step": int | None}
    if not isinstance(item, dict) or set(item) != set(kinds):
        raise ValueError(f"{str(item)[:80]} is no attempt")
    for name, kind in kinds.items():
        if not isinstance(item[name], kind) or isinstance(item[name], bool):
            raise ValueError(f"{name} = {item[name]!r}")
    return Attempt(**item)


def _write(path: Path, attempts: list[Attempt]) -> None:
    write_whole(path, json.dumps([asdict(item) for item in attempts], indent=2) + "\n")


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
