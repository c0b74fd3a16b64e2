"""The tasks of all data sources in one row, and which of them are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from reroll.api import Problem, RerollError, RunFileError, Task, TaskError, TaskSet, counted
from reroll.config import LoadedRunFile
from reroll.generation.config import GenerationSection
from reroll.models.files import ModelFiles
from reroll.plan import source_limits
from reroll.rollouts.groups import GroupPlan
from reroll.sources import TaskSets, make_plans
from reroll.tasks.config import DataSection
from reroll.tasks.pointers import POINTER, pointer_of, read_columns

SHOWN = 5
"""Names that an error lists."""


@dataclass(frozen=True)
class Part:
    """The tasks of one data source.

    Attributes:
        first: position of its first task among all.
        plan: how one attempt is drawn and judged; its trial is not in it.
        walked: the tasks of a streaming set, which only comes in its order.
    """

    name: str
    task_set: TaskSet
    size: int
    first: int
    plan: GroupPlan
    max_prompt_len: int
    walked: tuple[Task, ...] | None = None

    def task(self, position: int) -> Task:
        if self.walked is not None:
            return self.walked[position - self.first]
        return self.task_set.task(position - self.first)


class TaskList:
    """Every task by its position: sources in the order of the run file, tasks in that of their set."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self._firsts = [part.first for part in parts]

    def __len__(self) -> int:
        return self.parts[-1].first + self.parts[-1].size

    def part(self, position: int) -> Part:
        return self.parts[bisect_right(self._firsts, position) - 1]

    def __iter__(self) -> Iterator[tuple[int, Task]]:
        for part in self.parts:
            for position in range(part.first, part.first + part.size):
                yield position, part.task(position)


def make_task_list(run: LoadedRunFile, task_sets: TaskSets, files: ModelFiles) -> TaskList:
    """The run's tasks; RunFileError for sets whose tasks cannot be counted."""
    section = run.get(GenerationSection)
    plans, data = make_plans(run, task_sets, files), run.get(DataSection)
    keys = [key for key, _ in data.task_sets()]
    parts: list[Part] = []
    first, left = 0, section.limit
    for key, source in zip(keys, data.all_sources(), strict=True):
        task_set = task_sets.training[source.name]
        walked = _walked(run, key, task_set, left)
        size = _size(task_set, left) if walked is None else len(walked)
        left = None if left is None else left - size
        plan = plans[source.name if data.sources else ""]
        limits = source_limits(run, source)
        room = plan.max_context - 1 if plan.max_context is not None else limits.max_prompt_len
        longest = min(limits.max_prompt_len, room)
        parts.append(Part(source.name, task_set, size, first, _frozen(plan, section), longest, walked))
        first += size
    parts = [part for part in parts if part.size]
    if not parts:
        raise TaskError(f"{keys[0]}: there are no tasks")
    return TaskList(parts)


def _walked(run: LoadedRunFile, key: str, task_set: TaskSet, left: int | None) -> tuple[Task, ...] | None:
    """The first tasks of a streaming set, None for a sized one."""
    if task_set.online:
        fault = Problem(key, f"the tasks of {task_set.name!r} come to be while a training run goes on", "give another")
        raise RunFileError([run.locate(fault)])
    try:
        len(task_set)
    except TypeError:
        if left is None:
            fault = Problem(key, f"{task_set.name!r} is streaming and never ends", "set generation.limit")
            raise RunFileError([run.locate(fault)]) from None
        return tuple(islice(task_set, left))
    return None


def _size(task_set: TaskSet, left: int | None) -> int:
    return len(task_set) if left is None else min(len(task_set), left)


def _frozen(plan: GroupPlan, section: GenerationSection) -> GroupPlan:
    """The training plan for one attempt; seeds are none of a training run's."""
    sampling = plan.sampling
    if section.temperature is not None:
        sampling = replace(sampling, temperature=section.temperature)
    return replace(plan, size=1, sampling=sampling, purpose=plan.purpose.replace("train", "generate", 1))


def named_positions(path: Path, tasks: TaskList) -> list[int]:
    """Positions of the tasks that a file names, ascending; RerollError for names that no task has.

    Args:
        path: an index (`.parquet`), whose rows name tasks by all three pointers; or text, in which each line is a
            `prepared_sample_id`, or one with its `source_dataset` and a colon before it.
    """
    wanted: dict[object, bool] = dict.fromkeys(_names(path), False)
    if not wanted:
        raise RerollError(f"generation.instances: {path} names no task")
    positions: list[int] = []
    for position, task in tasks:
        names = [name for name in (pointer_of(task), task.key, task.prepared_sample_id) if name in wanted]
        if names:
            positions.append(position)
        wanted.update(dict.fromkeys(names, True))
    missing = [name for name, met in wanted.items() if not met]
    if missing:
        shown = ", ".join(map(str, missing[:SHOWN])) + ("…" if len(missing) > SHOWN else "")
        raise RerollError(
            f"generation.instances: {path} names {counted(len(missing), 'task')} that the task set does not have: "
            f"{shown}; give their `prepared_sample_id`s"
        )
    return positions


def _names(path: Path) -> Iterable[object]:
    if path.suffix == ".parquet":
        try:
            columns = read_columns(path, POINTER)
        except TaskError as error:
            raise RerollError(f"generation.instances: {error}") from None
        return list(zip(*(columns[name].to_pylist() for name in POINTER), strict=True))
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RerollError(f"generation.instances: {path} cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip()]
