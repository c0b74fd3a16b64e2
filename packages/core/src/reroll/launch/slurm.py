"""`launch.backend = "slurm"`: a run as a batch job."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from reroll.api import Config, JobState, Launcher, LaunchJob, Problem, RerollError, RunFile
from reroll.config.atomic import write_whole
from reroll.launch.config import LaunchSection

SCRIPT = "job.sbatch"
LOW_PRIORITY = 1000
"""Slurm takes it off the job's priority (`--nice`), which every user may ask for."""
ENDING_SECONDS = 120
"""Before its time is up the job is told to end, so that a checkpoint can be written."""
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
GOING_ON = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}


class SlurmLauncherConfig(Config):
    partition: str | None = None
    """Partition to ask for; unset, Slurm's default, as with the options below."""
    account: str | None = None
    """Account that the job's time is taken from."""
    qos: str | None = None
    """Quality of service, which decides about priority and preemption."""
    time_limit: str | None = Field(None, pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")
    """Longest time of the job, in Slurm's forms, such as "12:00:00" or "2-00". Two minutes before its end the run ends
    cleanly."""
    gpus: int | str | None = None
    """GPUs of the node that the job gets (`--gpus-per-node`): a number, or with their kind as "h100:8"."""
    cpus_per_task: int | None = Field(None, gt=0)
    """CPU cores that the job gets."""
    memory: str | None = Field(None, pattern=r"^\d+[KMGT]?$")
    """Memory of the node that the job gets, as "64G"."""
    python: str | None = None
    """Python of the environment in which the run starts; by default the one that this command runs in."""
    setup: tuple[str, ...] = ()
    """Lines of shell that the job runs first, such as "module load cuda"."""
    container_image: str | None = None
    """Image in which the run starts, by Slurm's plugin Pyxis (`srun --container-image`); `launch.mounts` are its
    folders. `python` is then one of the image."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, as "--constraint=h100"."""

    @field_validator("partition", "account", "qos", "gpus")
    @classmethod
    def _one_word(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and not re.fullmatch(r"[^\s'\"#\\]+", value):
            raise ValueError("stands in a line of the batch script: give one word, without quotes")
        return value

    @field_validator("setup", "options")
    @classmethod
    def _one_line(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            if re.search(r"[\r\n]", item):
                raise ValueError(f"{item!r} has more than one line: give each as an item of its own")
        return value

    @field_validator("options")
    @classmethod
    def _are_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            if not re.match(r"--[a-z]", item):
                raise ValueError(f'{item!r} is no option of sbatch: give "--name=value"')
        return value


class SlurmLauncher(Launcher):
    """A batch job of one node. With `launch.auto_resume` a preempted job is put back in the queue and goes on from its
    newest checkpoint."""

    name = "slurm"
    Config = SlurmLauncherConfig
    knows = frozenset({"priority", "min_runtime", "mounts"})
    priorities = ("normal", "low")
    other_priorities = "more than that is a matter of the option `qos` of launch.backend"

    def problems(self, run: RunFile) -> Iterator[Problem]:
        section = run.get(LaunchSection)
        if shutil.which("sbatch") is None:
            yield Problem("launch.backend", '"slurm" needs the command sbatch, which is not here', "submit where it is")
        if section.min_runtime is not None and self.config.time_limit is None:
            yield Problem(
                "launch.min_runtime",
                f"is {section.min_runtime:g} minutes, but the job asks for no time that Slurm could shorten",
                "give launch.backend a time_limit",
            )
        if section.mounts and self.config.container_image is None:
            yield Problem(
                "launch.mounts",
                "are folders of a container, and the job has none",
                "give launch.backend a container_image, or leave launch.mounts out",
            )

    def submit(self, job: LaunchJob) -> Mapping[str, Any]:
        """Writes `<output>/launch/job.sbatch` and submits it."""
        script = job.log.with_name(SCRIPT)
        write_whole(script, self.preview(job))
        found = _ask(["sbatch", "--parsable", str(script)])
        number, _, cluster = found.strip().splitlines()[-1].partition(";") if found.strip() else ("", "", "")
        if not number.isdigit():
            raise RerollError(f"sbatch did not say the job's number, but {found.strip()!r}")
        return {"job": number, "cluster": cluster or None}

    def preview(self, job: LaunchJob) -> str:
        """The script that sbatch gets."""
        config = self.config
        options: dict[str, Any] = {
            "job-name": job.name,
            "output": _literal(job.log.parent).replace("%", "%%") + "/slurm-%j.log",
            "open-mode": "append",
            "nodes": 1,
            "ntasks": 1,
            "partition": config.partition,
            "account": config.account,
            "qos": config.qos,
            "time": config.time_limit,
            "time-min": None if job.min_runtime is None else max(1, round(job.min_runtime)),
            "gpus-per-node": config.gpus,
            "cpus-per-task": config.cpus_per_task,
            "mem": config.memory,
            "nice": LOW_PRIORITY if job.priority == "low" else None,
            "signal": f"B:TERM@{ENDING_SECONDS}",
        }
        if re.search(r"[\r\n]", options["output"]):
            raise RerollError(f"output.dir: {str(job.output)!r} has more than one line, which no batch script can name")
        lines = ["#!/bin/bash"]
        lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
        lines.append("#SBATCH --requeue" if job.auto_resume else "#SBATCH --no-requeue")
        lines += [f"#SBATCH {option}" for option in config.options]
        command = [config.python or sys.executable, *job.arguments]
        if config.container_image is not None:
            mounts = [f"--container-mounts={','.join(job.mounts)}"] if job.mounts else []
            folder = f"--container-workdir={job.working_directory}"
            command = ["srun", f"--container-image={config.container_image}", *mounts, folder, *command]
        return "\n".join(
            [*lines, *config.setup, f"cd {shlex.quote(str(job.working_directory))}", f"exec {shlex.join(command)}", ""]
        )

    def state(self, handle: Mapping[str, Any]) -> JobState:
        number = str(handle["job"])
        try:
            found = _ask(["squeue", *_cluster(handle), "--noheader", "--jobs", number, "--format=%T|%N|%r"])
        except RerollError as error:
            if "Invalid job id" not in str(error):  # which squeue says of those that ended a while ago
                return JobState("unknown", detail=str(error))
            found = ""
        line = next((line for line in found.splitlines() if line.count("|") >= 2), None)
        if line is None:
            return JobState("ended", detail=f"job {number} is not in the queue")
        name, where, reason = line.split("|", 2)
        detail = f"job {number}: {name}" + (f" ({reason})" if reason not in ("", "None") else "")
        if name in WAITING:
            return JobState("pending", where, detail)
        return JobState("running" if name in GOING_ON else "ended", where, detail)

    def kill(self, handle: Mapping[str, Any]) -> None:
        _ask(["scancel", *_cluster(handle), str(handle["job"])])


def _literal(path: Path) -> str:
    """As sbatch reads it in a script's comments: quotes, `#` and spaces have a meaning there."""
    return re.sub(r"""([\\\s'"#])""", r"\\\1", str(path))


def _cluster(handle: Mapping[str, Any]) -> list[str]:
    return [f"--clusters={handle['cluster']}"] if handle.get("cluster") else []


def _ask(command: Sequence[str]) -> str:
    """What the command prints; RerollError where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise RerollError(f"the command {command[0]} is not here") from None
    except subprocess.TimeoutExpired:
        raise RerollError(f"{command[0]} has not answered within 120 s") from None
    if done.returncode:
        raise RerollError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout
