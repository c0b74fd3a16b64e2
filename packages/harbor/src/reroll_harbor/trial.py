"""One trial of Harbor's: its environment, the turns of a conversation, its verifier. Imports Harbor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.error_policy import ErrorPolicyOverride
from harbor.models.trial.result import TimingInfo
from harbor.trial.trial import Trial

from reroll.api import RerollError, one_line
from reroll.workers.together import uninterrupted
from reroll_harbor.turns import ConversationFailed, Turns, waiting

if TYPE_CHECKING:
    from reroll_harbor.harness import HarborConfig

AGENT = "reroll_harbor.agent:TurnsAgent"
OUT_OF_TIME = "AgentTimeoutError"
"""What Harbor records where the time for the turns is over; it judges what is there then."""


class TrialError(RerollError):
    """A trial that says nothing about the answer: no environment, or no reward."""


class Outcome(NamedTuple):
    """What a trial found.

    Attributes:
        timed_out: the task's time for the turns was over before they were.
        setup_seconds, verifier_seconds: until the environment was ready; of the tests.
        fault: what went wrong beside it, such as taking the environment down; None where nothing did.
    """

    rewards: dict[str, float]
    timed_out: bool
    setup_seconds: float
    verifier_seconds: float
    fault: str | None


async def run_trial(name: str, task: Path, folder: Path, turns: Turns, config: HarborConfig) -> Outcome:
    """Starts the task's environment, runs the turns in it and has the task's tests judge what they left.

    The environment is stopped and deleted before this returns, raises or is cancelled.

    Args:
        name: of the trial; Harbor names its files, and the environment, after it.
        folder: in which Harbor makes the trial's own.
        turns: the conversation.

    Raises:
        TrialError: the environment could not be started, the conversation failed, or the tests gave no reward.
    """
    with waiting(name, turns):
        trial = await Trial.create(_trial_config(name, task, folder, config))
        running = asyncio.create_task(trial.run())
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.cancel()
            # Harbor stops the environment on its way out, which a second cancellation must not break off.
            await uninterrupted(asyncio.wait({running}))
            if not running.cancelled():
                running.exception()  # of the way out; the cancellation is what counts
            raise
    recorded = result.exception_info
    fault = None if recorded is None else f"{recorded.exception_type}: {one_line(recorded.exception_message, 600)}"
    if not result.reward_valid:
        raise TrialError(f"the trial of {task} failed: {fault or 'its tests gave no reward'}")
    timed_out = recorded is not None and recorded.exception_type == OUT_OF_TIME
    return Outcome(
        rewards={str(key): float(value) for key, value in result.verifier_result.rewards.items()},
        timed_out=timed_out,
        setup_seconds=_seconds(result.environment_setup),
        verifier_seconds=_seconds(result.verifier),
        fault=None if timed_out else fault,
    )


def _trial_config(name: str, task: Path, folder: Path, config: HarborConfig) -> TrialConfig:
    import_path = config.environment_import_path
    never_graded = ErrorPolicyOverride(should_retry=False, should_grade=False, has_valid_reward=False)
    return TrialConfig(
        task=TaskConfig(path=task),
        trial_name=name,
        trials_dir=folder,
        timeout_multiplier=config.timeout_multiplier,
        agent=AgentConfig(import_path=AGENT, kwargs={"trial": name}, override_timeout_sec=config.agent_timeout),
        environment=EnvironmentConfig(
            type=None if import_path else EnvironmentType(config.environment),
            import_path=import_path,
            force_build=config.force_build,
            delete=config.delete,
            kwargs=dict(config.environment_options),
        ),
        override_error_policy={ConversationFailed.__name__: never_graded},
    )


def _seconds(timing: TimingInfo | None) -> float:
    if timing is None or timing.started_at is None or timing.finished_at is None:
        return 0.0
    return float((timing.finished_at - timing.started_at).total_seconds())
