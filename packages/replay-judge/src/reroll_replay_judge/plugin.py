"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Derivation, TaskSet, hookimpl
from reroll_replay_judge.derivation import JudgeTranscript


@hookimpl
def reroll_derivations() -> list[type[Derivation]]:
    return [JudgeTranscript]


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    from reroll.replay import replay_tasks

    return [replay_tasks(JudgeTranscript)]
