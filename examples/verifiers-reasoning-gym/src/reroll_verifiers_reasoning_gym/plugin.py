"""What the package gives to reroll. reasoning-gym takes seconds to import, and is not imported here."""

from __future__ import annotations

from reroll import TaskSet, Verifier, hookimpl


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    from reroll_verifiers_reasoning_gym.task_set import ReasoningGymTasks

    return [ReasoningGymTasks]


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    from reroll_verifiers_reasoning_gym.verifier import ReasoningGymVerifier

    return [ReasoningGymVerifier]
