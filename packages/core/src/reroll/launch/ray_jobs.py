"""`launch.backend = "ray"`: a run as a job of a Ray cluster, through Ray's Jobs API."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from pydantic import Field, field_validator

from reroll.api import Config, JobState, Launcher, LaunchJob, Problem, RerollError, RunFile
from reroll.config.secrets import secret_problems

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class RayLauncherConfig(Config):
    address: str | None = None
    """The cluster: the URL of its dashboard as "http://127.0.0.1:8265", or "host:port" of its head. By default what
    RAY_ADDRESS says, or the cluster that this machine belongs to."""
    python: str | None = None
    """Python of the environment in which the run starts, on the cluster's machines; by default the one that this
    command runs in."""
    num_cpus: float = Field(0.0, ge=0)
    """CPUs that Ray sets aside for the run's controller. With none, and without `num_gpus`, it runs on the head
    node."""
    num_gpus: float = Field(0.0, ge=0)
    """GPUs that Ray sets aside for the job, for a run with `placement.backend = "local"`. One with "ray" reserves its
    workers' devices by itself."""
    env_vars: dict[str, str] = {}
    """Environment of the run, beside the cluster's own. Ray shows it to all who see its dashboard: no secrets."""

    @field_validator("env_vars")
    @classmethod
    def _no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for problem in secret_problems(value, place="launch.backend.env_vars"):
            raise ValueError(f"{problem.key.rpartition('.')[2]} {problem.message}: {problem.remedy}")
        return value


class RayLauncher(Launcher):
    """A job of a Ray cluster: its controller runs on a machine of the cluster, which must see the run's folder under
    the same path."""

    name = "ray"
    Config = RayLauncherConfig

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if find_spec("ray") is None:
            yield Problem("launch.backend", '"ray" needs Ray, which is not installed', "pip install 'reroll[ray]'")

    def preview(self, job: LaunchJob) -> str:
        """The job's entry point, a line of shell."""
        command = [self.config.python or sys.executable, *job.arguments]
        return f"cd {shlex.quote(str(job.working_directory))} && exec {shlex.join(command)}"

    def submit(self, job: LaunchJob) -> Mapping[str, Any]:
        client = self._client()
        try:
            found = client.submit_job(
                entrypoint=self.preview(job),
                submission_id=f"reroll-{job.name}-{secrets.token_hex(4)}",
                metadata={"reroll_run": job.name, "reroll_output": str(job.output)},
                runtime_env={"env_vars": dict(self.config.env_vars)} if self.config.env_vars else None,
                entrypoint_num_cpus=self.config.num_cpus or None,
                entrypoint_num_gpus=self.config.num_gpus or None,
            )
        except Exception as error:
            raise RerollError(f"Ray did not take the job: {error}") from None
        return {"job": found}

    def state(self, handle: Mapping[str, Any]) -> JobState:
        try:
            info = self._client().get_job_info(handle["job"])
        except RerollError as error:
            return JobState("unknown", detail=str(error))
        except Exception as error:
            return JobState("unknown", detail=f"Ray does not say how the job {handle['job']} stands: {error}")
        name = str(info.status.value)
        where = (info.driver_agent_http_address or "").removeprefix("http://").rpartition(":")[0]
        if name in ENDED:
            return JobState("ended", where, f"{handle['job']}: {name}")
        return JobState("running" if name == "RUNNING" else "pending", where, handle["job"])

    def kill(self, handle: Mapping[str, Any]) -> None:
        try:
            self._client().stop_job(handle["job"])
        except RerollError:
            raise
        except Exception as error:
            raise RerollError(f"Ray did not end the job {handle['job']}: {error}") from None

    def _client(self) -> Any:
        if find_spec("ray") is None:
            raise RerollError("launch.backend = \"ray\" needs ray: pip install 'reroll[ray]'")
        from ray.job_submission import JobSubmissionClient

        try:
            return JobSubmissionClient(self.config.address)
        except Exception as error:
            where = self.config.address or "RAY_ADDRESS or this machine"
            raise RerollError(
                f"launch.backend: no Ray cluster with a dashboard at {where}: {error}; start one with "
                "`ray start --head`"
            ) from None
