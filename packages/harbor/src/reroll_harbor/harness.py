"""The harness: conversations with a shell in an environment of Harbor's, judged by Harbor's verifier."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from reroll.api import Completion, GenerationRequest, Harness, HarnessContext, RenderedPrompt, Task, TaskError, Trace
from reroll.rollouts.tool_loop import Conversation, ToolLoopConfig
from reroll_harbor.availability import missing_back_end, missing_package
from reroll_harbor.bash import EnvironmentBash
from reroll_harbor.layout import digest_of
from reroll_harbor.turns import ConversationFailed

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

GRACE = 30.0
"""Seconds beyond `tool_timeout` that an environment has for saying that a command took too long."""
NAME = re.compile(r"[^a-z0-9]+")


class HarborConfig(ToolLoopConfig):
    max_turns: int = Field(50, gt=0)
    """Most turns that the model takes, summaries apart. What the last one calls is not run any more."""
    tool_timeout: float = Field(120.0, gt=0)
    """Seconds that one command may take."""
    parallel_tool_calls: bool = False
    """Runs all commands of a turn at once; otherwise one after the other."""
    environment: str = Field("docker", min_length=1)
    """Which of Harbor's environments tasks run in: docker, podman, singularity, daytona, modal and others."""
    environment_import_path: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """An environment class of one's own, as `module:Class`, in place of `environment`."""
    environment_options: dict[str, Any] = {}
    """What the environment's class is given beside what tasks say: Harbor's `environment.kwargs`."""
    force_build: bool = False
    """Builds images anew where there is one already."""
    delete: bool = True
    """Deletes after a trial what the back end can keep of its environment. False keeps images of docker and podman,
    also those that were built for the trial alone; other back ends may keep sandboxes, which cost money."""
    agent_timeout: float | None = Field(None, gt=0)
    """Seconds that the model's turns may take together, in place of what tasks say."""
    timeout_multiplier: float = Field(1.0, gt=0)
    """All time limits of tasks are multiplied by it: of start, turns and tests."""
    trials_dir: Path | None = None
    """Keeps what Harbor writes of each trial, such as the output of its tests; by default it is deleted."""

    @model_validator(mode="after")
    def _one_environment(self) -> HarborConfig:
        if self.environment_import_path is not None and "environment" in self.model_fields_set:
            raise ValueError(
                f"environment = {self.environment!r} does nothing beside environment_import_path: remove one of them"
            )
        return self


class HarborHarness(Harness):
    """A conversation in which the model runs commands in the task's environment.

    Harbor starts the environment, keeps the task's time limits, runs its tests and takes the environment down; the
    turns are those of `tool_loop`. Where the time for the turns is over the tests judge what is there. A trial without
    an environment or without a reward is an error, and no failed answer.
    """

    name = "harbor"
    metrics_logged = {
        "harbor/timeouts": ("share", "of trials that Harbor broke off"),
        "harbor/setup_seconds": ("s", "until the environment was there, mean per trial"),
        "harbor/verifier_seconds": ("s", "that Harbor's verifier took, mean per trial"),
    }
    calls_tools = True
    resumable = False
    Config = HarborConfig
    config: HarborConfig

    def lacks(self) -> str | None:
        config = self.config
        return missing_package() or missing_back_end(
            config.environment, config.environment_import_path, config.environment_options
        )

    async def run(self, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> Trace:
        if missing := missing_package():
            raise TaskError(missing)
        folder = await asyncio.to_thread(unchanged_directory, task)
        # Importing takes seconds the first time, in which other conversations go on.
        trials: Any = await asyncio.to_thread(import_module, "reroll_harbor.trial")
        turns = _Turns(self.config, task, rendered, context)
        name = trial_name(task)
        outcome = None
        async with _files(self.config.trials_dir) as files:
            try:
                outcome = await trials.run_trial(name, folder, files, turns, self.config)
            except trials.TrialError:
                if turns.failure is None:
                    raise
        if turns.failure is not None:
            raise turns.failure
        assert outcome is not None and turns.conversation is not None, "without turns there is no reward"
        trace = turns.conversation.end("timeout") if outcome.timed_out else turns.conversation.trace
        trace.info["harbor"] = {"trial": name, "rewards": outcome.rewards, "timed_out": outcome.timed_out}
        if outcome.fault:
            trace.info["harbor"]["fault"] = outcome.fault
        trace.metrics |= {
            "harbor/timeouts": float(outcome.timed_out),
            "harbor/setup_seconds": outcome.setup_seconds,
            "harbor/verifier_seconds": outcome.verifier_seconds,
        }
        return trace


class _Turns:
    """The conversation of one trial, once there is an environment.

    Attributes:
        failure: what ended it, where that was no limit.
    """

    def __init__(self, config: HarborConfig, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> None:
        # The environment is the first to know that a command took too long.
        self._config = config.model_copy(update={"tool_timeout": config.tool_timeout + GRACE})
        self._seconds = config.tool_timeout
        self._task = task
        self._rendered = rendered
        self._context = context
        self.conversation: Conversation | None = None
        self.failure: Exception | None = None

    async def __call__(self, environment: BaseEnvironment) -> None:
        bash = EnvironmentBash(environment, self._seconds)

        async def generate(request: GenerationRequest) -> Completion:
            if bash.failure is not None:  # the model is not to go on with what its environment failed at
                raise bash.failure
            return await self._context.generate(request)

        context = replace(self._context, generate=generate, tools={bash.name: bash})
        self.conversation = Conversation(self._config, self._task, context)
        try:
            await self.conversation.run(self._rendered)
            if bash.failure is not None:
                raise bash.failure
        except Exception as error:
            self.failure = error
            raise ConversationFailed(f"{type(error).__name__}: {error}") from error


def unchanged_directory(task: Task) -> Path:
    """The task's directory; TaskError where it is not what was read."""
    target = task.targets.get("harbor")
    if not isinstance(target, dict) or not isinstance(target.get("path"), str):
        raise TaskError(f"task {task.key} is none of the task set 'harbor': it names no directory")
    folder = Path(target["path"])
    if not folder.is_dir():
        raise TaskError(f"task {task.key}: {folder} is not there any more")
    if digest_of(folder) != target.get("digest"):
        raise TaskError(f"task {task.key}: the files in {folder} have changed since they were read; start anew")
    return folder


def trial_name(task: Task) -> str:
    """A name that back ends take for containers, and that no other trial has."""
    short = NAME.sub("-", task.prepared_sample_id.rpartition("/")[2].lower()).strip("-")[:32]
    return f"{short or 'task'}-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def _files(kept: Path | None) -> AsyncIterator[Path]:
    """Where Harbor writes; gone afterwards unless it is kept."""
    if kept is not None:
        yield kept.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="reroll-harbor-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
