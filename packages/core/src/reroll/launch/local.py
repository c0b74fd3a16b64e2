"""`launch.backend = "local"`: a run that is detached from the terminal that started it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reroll.api import JobState, Launcher, LaunchJob, RerollError

NICE = {"normal": 0, "low": 10}


class LocalLauncher(Launcher):
    """A session of its own on this machine, which goes on when the terminal is closed."""

    name = "local"
    knows = frozenset({"priority"})
    priorities = tuple(NICE)

    def preview(self, job: LaunchJob) -> str:
        return shlex.join([sys.executable, *job.arguments])

    def submit(self, job: LaunchJob) -> Mapping[str, Any]:
        """Starts the session. With `launch.priority = "low"` its processes give way to others (nice 10)."""
        with job.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *job.arguments],
                cwd=job.working_directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if job.priority is not None:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE[job.priority])
        process.returncode = 0  # nobody here waits for it, and that is meant
        return {"pid": process.pid, "birth": birth(process.pid), "host": socket.gethostname()}

    def state(self, handle: Mapping[str, Any]) -> JobState:
        where = str(handle["host"])
        if where != socket.gethostname():
            return JobState("unknown", where, f"ask on {where}, where it was started")
        if not _alive(handle):
            return JobState("ended", where)
        return JobState("running", where, f"process {handle['pid']}")

    def kill(self, handle: Mapping[str, Any]) -> None:
        if handle["host"] != socket.gethostname():
            raise RerollError(f"the run was started on {handle['host']}: end it there")
        if _alive(handle):
            with suppress(ProcessLookupError):
                os.killpg(handle["pid"], signal.SIGKILL)


def _alive(handle: Mapping[str, Any]) -> bool:
    found = birth(int(handle["pid"]))
    return found is not None and found == handle["birth"]


def birth(pid: int) -> str | None:
    """When the process was started, as the system counts: a later process with its number has another one. None
    where there is none, or only what its parent has not yet taken note of."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            state, *rest = stat.read_text().rpartition(") ")[2].split()
        except (OSError, ValueError):
            return None
        return None if state == "Z" else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{rest[18]}"
    asked = subprocess.run(["ps", "-p", str(pid), "-o", "stat=,lstart="], capture_output=True, text=True)
    state, _, started = asked.stdout.strip().partition(" ")
    return None if asked.returncode or state.startswith("Z") else started.strip()
