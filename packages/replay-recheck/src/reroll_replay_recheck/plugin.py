"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Derivation, TaskSet, hookimpl
from reroll_replay_recheck.derivation import Recheck


@hookimpl
def reroll_derivations() -> list[type[Derivation]]:
    return [Recheck]


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    from reroll.replay import replay_tasks

    return [replay_tasks(Recheck)]
