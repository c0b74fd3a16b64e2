"""`reroll run`: the run's folder is made ready, and a launcher starts the run's supervisor."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from reroll.api import LaunchJob, RerollError
from reroll.config import LoadedRunFile
from reroll.config.atomic import write_whole
from reroll.config.run import RunSection
from reroll.launch.attempts import check_starts, holder, read_attempts, run_lock
from reroll.launch.config import LaunchSection
from reroll.launch.folder import (
    END,
    LAUNCH,
    LOG,
    STOP,
    SUBMITTED,
    SUPERVISOR_LOCK,
    LaunchError,
    Receipt,
    read_receipts,
    write_receipts,
)
from reroll.launch.jobs import state_of

SUPERVISOR = "reroll.launch.supervisor"


def submit(run: LoadedRunFile, output: Path, warn: Callable[[str], None]) -> Receipt:
    """Starts the run where `[launch]` says, and keeps the receipt in its folder, which is there.

    Args:
        run: whose `output.dir` is `output`, absolute.

    Raises:
        RerollError: the run goes on already, was started as often as it may, or the back end refused the job.
    """
    section, folder = run.get(LaunchSection), output / LAUNCH
    folder.mkdir(exist_ok=True)
    with run_lock(folder, warn):
        if (user := holder(output) or holder(folder, SUPERVISOR_LOCK)) is not None:
            raise LaunchError(f"output.dir: the run in {output} goes on already ({user}): `reroll status {output}`")
        receipts = read_receipts(output)
        if receipts and (state := state_of(receipts[-1], run.plugins)).state in ("pending", "running"):
            raise LaunchError(
                f"output.dir: the job of the run in {output} is {state.state} {state.where} {state.detail}".rstrip()
                + f"; `reroll stop {output}` ends it"
            )
        starts = len(read_attempts(output))
        check_starts(output, starts, section.max_retries)
        write_whole(folder / SUBMITTED, tomli_w.dumps(run.to_toml()))
        for name in (STOP, END):
            (folder / name).unlink(missing_ok=True)
        selection = run.to_toml()["launch"]["backend"]
        receipt = Receipt(
            backend=selection if isinstance(selection, dict) else {"name": selection},
            submitted=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            user=_user(),
            starts_before=starts,
        )
        # Before the job: whatever happens from here on, the folder says that something was started.
        write_receipts(output, [*receipts, receipt])
        try:
            handle = section.launcher(run).submit(job_of(run, output))
        except (RerollError, OSError):
            write_receipts(output, receipts)
            raise
        receipt = replace(receipt, handle=dict(handle))
        write_receipts(output, [*receipts, receipt])
    return receipt


def job_of(run: LoadedRunFile, output: Path) -> LaunchJob:
    """What a launcher gets for the run in that folder, which need not be there."""
    section = run.get(LaunchSection)
    return LaunchJob(
        name=run.get(RunSection).name,
        arguments=("-m", SUPERVISOR, str(output)),
        output=output,
        log=output / LAUNCH / LOG,
        working_directory=Path.cwd(),
        auto_resume=section.auto_resume,
        priority=section.priority,
        min_runtime=section.min_runtime,
        mounts=section.mounts,
    )


def _user() -> str:
    with suppress(Exception):  # there is none in some containers
        return getpass.getuser()
    return "unknown"
