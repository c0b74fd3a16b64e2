"""Ending a run from outside."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from reroll.api import RerollError
from reroll.launch.attempts import holder
from reroll.launch.folder import LAUNCH, STOP, SUPERVISOR_LOCK, End, LaunchError, read_end, read_receipts, write_end
from reroll.launch.jobs import launcher_of, state_of
from reroll.plugins import PluginManager


def ask_to_end(output: Path, plugins: PluginManager, now: bool) -> None:
    """Asks the run to end and not to start again, or ends it at once (`now`). LaunchError where nothing that could be
    asked is known.

    A job that waits for room is taken back. The file that asks reaches a supervisor on any machine; a run whose
    supervisor is gone, or that `reroll train` started, is signalled here.
    """
    receipts = read_receipts(output)
    job = state_of(receipts[-1], plugins) if receipts else None
    if receipts:
        (output / LAUNCH / STOP).touch()
    if job is not None and job.state in ("pending", "running"):
        if now or job.state == "pending":
            launcher_of(receipts[-1], plugins).kill(receipts[-1].handle or {})
    elif (keeper := holder(output / LAUNCH, SUPERVISOR_LOCK)) is not None:  # of a submission that was broken off
        if now:
            for each in filter(None, (keeper, holder(output))):
                _signal(output, each, signal.SIGKILL)
    elif (user := holder(output)) is not None:
        _signal(output, user, signal.SIGKILL if now else signal.SIGTERM)
    elif job is not None and job.state == "unknown":
        raise LaunchError(f"the job of {output} cannot be asked: {job.detail}")
    if receipts and (now or (job is not None and job.state == "pending")) and read_end(output) is None:
        write_end(output, End(None, "it was ended by `reroll stop`"))


def _signal(output: Path, user: str, number: int) -> None:
    found = re.fullmatch(r"process ([1-9]\d{0,9}) on (.+)", user)
    if found is None or found[2] != socket.gethostname():
        raise RerollError(f"{output} is used by {user}: give `reroll stop` there")
    with suppress(ProcessLookupError):
        os.kill(int(found[1]), number)
