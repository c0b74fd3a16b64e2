"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, TaskSet, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.tasks.config import DataSection

    return [DataSection]


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    from reroll.tasks.arithmetic import Addition, Multiplication
    from reroll.tasks.file import FileTaskSet

    return [Addition, Multiplication, FileTaskSet]
