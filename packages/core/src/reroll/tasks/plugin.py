"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, Dataset, TaskSet, Tool, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.tasks.config import DataSection

    return [DataSection]


@hookimpl
def reroll_task_sets() -> list[type[TaskSet]]:
    from reroll.tasks.arithmetic import Addition, Multiplication
    from reroll.tasks.calculations import Calculations
    from reroll.tasks.file import FileTaskSet
    from reroll.tasks.index import IndexTaskSet
    from reroll.tasks.manifest import ManifestTaskSet

    return [Addition, Multiplication, Calculations, FileTaskSet, IndexTaskSet, ManifestTaskSet]


@hookimpl
def reroll_tools() -> list[type[Tool]]:
    from reroll.tasks.calculator import Calculator

    return [Calculator]


@hookimpl
def reroll_datasets() -> list[type[Dataset]]:
    from reroll.tasks.catalog.multiplication import MultiplicationDataset

    return [MultiplicationDataset]
