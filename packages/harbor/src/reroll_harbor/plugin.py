"""What the package gives to reroll."""

from __future__ import annotations

from reroll import Harness, TaskSet, Tool, Verifier, hookimpl
from reroll_harbor.bash import Bash
from reroll_harbor.harness import HarborHarness
from reroll_harbor.task_set import HarborTasks
from reroll_harbor.verifier import HarborVerifier


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    return [HarborTasks]


@hookimpl
def reroll_harnesses() -> list[type[Harness]]:
    return [HarborHarness]


@hookimpl
def reroll_verifiers() -> list[type[Verifier]]:
    return [HarborVerifier]


@hookimpl
def reroll_tools() -> list[type[Tool]]:
    return [Bash]
