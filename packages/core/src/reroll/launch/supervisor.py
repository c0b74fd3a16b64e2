"""The process that starts a run, starts it again where it may, and says in the end how it went. Every launcher starts
one: `python -m reroll.launch.supervisor FOLDER`.

A run that was killed (a signal ended it, or one of its workers) is started again with `launch.auto_resume`; one that
failed by itself as often as `launch.retries` says; one that was asked to end never.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from reroll.api import WORKER_LOST, counted
from reroll.launch.attempts import AttemptsError, check_starts, read_attempts, run_lock
from reroll.launch.config import LaunchSection
from reroll.launch.folder import END, LAUNCH, LOG, STOP, SUBMITTED, SUPERVISOR_LOCK, End, write_end

LOOK_SECONDS = 0.25
SHORT_SECONDS = 60.0
"""A start that ends sooner is followed by a longer wait, which doubles from the first to the longest."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
BAD_RUN_FILE = 2


def why_not_again(section: LaunchSection, code: int, failures: int) -> str | None:
    """Why a start that ended with `code`, after so many failures before it, is the last one; None where it is not."""
    if code in (0, *INTERRUPTED):
        return ""
    if code == BAD_RUN_FILE:
        return "its run file has faults"
    if not section.auto_resume:
        return f"the run {_how(code)}, and launch.auto_resume is false"
    if not _was_killed(code) and failures >= section.retries:
        return f"the run {_how(code)}, and launch.retries = {section.retries}"
    return None


class Stopping:
    """Whether the run is asked to end: by a signal, or by a file, which reaches every machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._signals = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        self._signals += 1

    @property
    def asked(self) -> int:
        """How often, the file once."""
        return self._signals + self._file.exists()


def supervise(output: Path) -> int:
    """Runs it to its end; gives the exit code of its last start.

    A submission that was broken off may have left a supervisor that nobody knows of: one at a time, and the second one
    leaves the folder as it is.
    """
    try:
        with run_lock(output / LAUNCH, _say, file=SUPERVISOR_LOCK):
            return _supervise(output)
    except AttemptsError as error:
        _say(str(error))
        return 1


def _supervise(output: Path) -> int:
    try:
        section = LaunchSection(**tomllib.loads((output / LAUNCH / SUBMITTED).read_text("utf-8"))["launch"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _ended(output, BAD_RUN_FILE, f"{output / LAUNCH / SUBMITTED} cannot be read: {error}")
    stopping = Stopping(output / LAUNCH / STOP)
    (output / LAUNCH / END).unlink(missing_ok=True)  # of a job that was put back in its queue
    failures, wait, before, starts = 0, FIRST_WAIT, _starts(output), 0
    while True:
        began = time.monotonic()
        code = _start(output, stopping)
        starts += 1
        why = "" if stopping.asked else why_not_again(section, code, failures)
        why = _bound(output, before + starts, section) if why is None else why
        if why is not None:
            break
        failures += not _was_killed(code)
        wait = FIRST_WAIT if time.monotonic() - began > SHORT_SECONDS else wait
        _say(f"the run {_how(code)}; it is started again in {wait:g} s")
        if not _wait(wait, stopping):
            why = ""
            break
        wait = min(2 * wait, LONGEST_WAIT)
    return _ended(output, code, why)


def _ended(output: Path, code: int, why: str) -> int:
    if why:
        _say(f"not started again: {why}")
    try:
        write_end(output, End(code, why))
    except OSError as error:
        _say(f"how the run ended cannot be kept: {error}")
    return code if code >= 0 else 128 - code


def _start(output: Path, stopping: Stopping) -> int:
    """One start of the run, until its end. It is told once when it is to end, and at once at the second time."""
    command = [sys.executable, "-m", "reroll", "train", str(output / LAUNCH / SUBMITTED)]
    told = 0
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while True:
            try:
                return process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if told < stopping.asked:
                    told = stopping.asked
                    process.send_signal(signal.SIGTERM)


def _bound(output: Path, starts: int, section: LaunchSection) -> str | None:
    """Why there may be no further start. One that was killed before it was counted in the folder counts here."""
    try:
        check_starts(output, max(starts, len(read_attempts(output))), section.max_retries)
    except AttemptsError as error:
        return str(error)
    return None


def _wait(seconds: float, stopping: Stopping) -> bool:
    """False where the run was asked to end meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopping.asked:
            return False
        time.sleep(min(left, LOOK_SECONDS))
    return not stopping.asked


def _was_killed(code: int) -> bool:
    return code < 0 or code == WORKER_LOST or code > 128


def _how(code: int) -> str:
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        try:
            return f"was ended by {signal.Signals(number).name}"
        except ValueError:
            return f"was ended by signal {number}"
    return "lost a worker" if code == WORKER_LOST else f"failed with exit code {code}"


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk must not end the one that starts the run again
        print(f"supervisor: {text}", flush=True)


def _into_log(path: Path) -> None:
    """What this process and those that it starts say goes to the end of the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)


def main(arguments: Any = None) -> None:
    (folder,) = sys.argv[1:] if arguments is None else arguments
    output = Path(folder)
    _into_log(output / LAUNCH / LOG)
    _say(
        f"process {os.getpid()} starts the run in {output}, which was started {counted(_starts(output), 'time')} before"
    )
    sys.exit(supervise(output))


def _starts(output: Path) -> int:
    try:
        return len(read_attempts(output))
    except AttemptsError:
        return 0


if __name__ == "__main__":
    main()
