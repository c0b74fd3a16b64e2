"""Indexes: Parquet files whose rows point at tasks of other task sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import ValidationError, model_validator

from reroll.api import (
    Binding,
    Config,
    Hook,
    Judge,
    PluginError,
    Problem,
    RunFile,
    Selection,
    Task,
    TaskError,
    TaskSet,
    task_from_record,
)
from reroll.config.problems import from_validation
from reroll.tasks.config import task_set_problems
from reroll.tasks.pointers import SETS, IndexRows, Pointer, pointer_of, task_digest

ONLINE = "has tasks only once a run goes on: no row can point at them"
REMEDY = "name the task set that the index was made of"


class IndexConfig(Config):
    path: Path
    """A `.parquet` file, as `reroll generate` writes it: each row points at a task by `source_dataset`, `source_row`
    and `prepared_sample_id`. Other columns, such as `pass_rate`, change nothing."""
    of: Annotated[Selection | None, Hook("task_sets")] = None
    """The task set that the rows' tasks are of. By default what the column `task_set` says; required where the file
    has no such column."""

    @model_validator(mode="after")
    def _parquet(self) -> IndexConfig:
        if self.path.suffix != ".parquet":
            raise ValueError(f"path = {str(self.path)!r} is no .parquet file; give an index, or use the set `file`")
        return self


class IndexTaskSet(TaskSet):
    """The tasks of other sets that a file points at, in the file's order. They stay the tasks that they are: identity,
    targets, tools and metadata are those of the set that they come from."""

    name = "index"
    Config = IndexConfig

    _bases: tuple[Base, ...] = ()
    _within: tuple[Path, ...] = ()
    """Indexes that this one is read for, outermost first."""

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        if config.of is None:
            return
        yield from task_set_problems(f"{key}.of", config.of, run)
        if run.make("task_sets", config.of).online:
            yield Problem(f"{key}.of", f"{config.of.name!r} {ONLINE}", REMEDY)

    def open(self, run: RunFile, output: Path | None, seed: int) -> None:
        path = self.config.path.resolve()
        if path in self._within:
            raise TaskError(f"{path} is an index of itself; set `of` to the task set that its rows' tasks are of")
        rows = self._rows
        self._bases = tuple(
            Base(self._opened(selection, run, output, seed), rows.of_set(number))
            for number, selection in enumerate(rows.sets)
        )
        if len(self._bases) == 1:
            tasks = self._bases[0].tasks
            # Of the class nothing of the kind is true: what holds depends on the file.
            vars(self).update(lazy=tasks.lazy, container=tasks.container)
            self.patience = tasks.patience
            return
        for base in self._bases:
            own = "brings verifiers of its own" if base.tasks.judges() is not None else ""
            if why := "binds its tasks when they are dispatched" if base.tasks.lazy else own:
                raise TaskError(
                    f"{path} points at tasks of {len(self._bases)} task sets, and {base.tasks.name!r} {why}: write an "
                    "index for each set, and list them as [[data.sources]]"
                )
        vars(self).update(container=any(base.tasks.container for base in self._bases))

    def _opened(self, selection: Selection, run: RunFile, output: Path | None, seed: int) -> TaskSet:
        where = "of" if self.config.of is not None else f"{self.config.path}: {SETS}"
        try:
            tasks = cast(TaskSet, run.make("task_sets", selection))
        except PluginError as error:
            raise TaskError(f"{where}: {selection.name!r}: {error}") from None
        except ValidationError as error:
            model: Any = run.component("task_sets", selection.name).Config
            faults = from_validation(error, where, model)
            told = (f"{item.key}: {item.message}" + f" ({item.remedy})" * bool(item.remedy) for item in faults)
            raise TaskError("; ".join(told)) from None
        if tasks.online:
            raise TaskError(f"{where}: {selection.name!r} {ONLINE}; {REMEDY}")
        tasks.warn = self.warn
        if isinstance(tasks, IndexTaskSet):
            tasks._within = (*self._within, self.config.path.resolve())
        tasks.open(run, output, seed)
        try:
            len(tasks)
        except TypeError:
            raise TaskError(f"{where}: {selection.name!r} is streaming: no row can be found in it; {REMEDY}") from None
        return tasks

    def judges(self) -> Mapping[str, Judge] | None:
        return self._bases[0].tasks.judges() if len(self._bases) == 1 else None

    def origin(self) -> Selection | None:
        if len(self._bases) != 1:
            return None
        return self._bases[0].tasks.origin() or self._rows.sets[0]

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, index: int) -> Task:
        """The task that row `index` points at; of a lazy set its stand-in."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        assert self._bases, "open() comes first"
        pointer, base = self._rows.pointer(index), self._bases[self._rows.set_of(index)]
        task = base.find(pointer)
        if task is None:
            raise TaskError(
                f"{self.config.path}:{index + 1}: no task of {base.tasks.name!r} has {shown(pointer)}"
                f"{base.unreadable}; drop the row, or set `of` to the task set that it was taken from"
            )
        digest = self._rows.digest(index)
        if digest is not None and digest != task_digest(task):
            raise TaskError(
                f"{self.config.path}:{index + 1}: the task of {base.tasks.name!r} with {shown(pointer)} is another one "
                "than when the index was made: its file has changed. Undo that, or measure the tasks again"
            )
        return task

    def bind(self, task: Task, request: int, tries: int = 0) -> Binding | None:
        return self._bases[0].tasks.bind(task, request, tries)

    def recover(self, saved: Mapping[str, Any]) -> Task:
        if len(self._bases) == 1:
            return self._bases[0].tasks.recover(saved)
        return task_from_record(saved)

    def fingerprint(self) -> str:
        """The default one; stand-ins say nothing of what they stand for, so that of a lazy set comes in."""
        own = super().fingerprint()
        return hashlib.sha256((own + self._bases[0].tasks.fingerprint()).encode()).hexdigest() if self.lazy else own

    @cached_property
    def _rows(self) -> IndexRows:
        return IndexRows(self.config.path, self.config.of)


def bases(selection: Selection, run: RunFile, within: tuple[Path, ...] = ()) -> list[Selection]:
    """The task sets that tasks of a selected one are of: of an index those that it points into, of any other set
    itself. For what has to be known of them without opening any; TaskError for an index that cannot be read."""
    if run.component("task_sets", selection.name) is not IndexTaskSet:
        return [selection]
    config = IndexConfig(**selection.options)
    path = config.path.resolve()
    if path in within:
        raise TaskError(f"{path} is an index of itself")
    pointed_at = [config.of] if config.of is not None else IndexRows(config.path, None).sets
    return [base for item in pointed_at for base in bases(item, run, (*within, path))]


class Base:
    """A set that rows point into.

    Args:
        tasks: sized, and open.
        wanted: what its rows say, for a search of the whole set.
    """

    def __init__(self, tasks: TaskSet, wanted: Iterable[Pointer]) -> None:
        self.tasks = tasks
        self.unreadable = ""
        """Why a search may have missed a task."""
        self._wanted = wanted

    def find(self, pointer: Pointer) -> Task | None:
        """The task with this pointer. It stands at its `source_row` in most sets; a file may number its rows in
        another way, and then the set is searched, once for all rows."""
        row = pointer[1]
        if 0 <= row < len(self.tasks):
            try:
                task = self.tasks.task(row)
            except TaskError:
                pass  # another row's fault, or told by the search
            else:
                if pointer_of(task) == pointer:
                    return task
        position = self._positions.get(pointer)
        return None if position is None else self.tasks.task(position)

    @cached_property
    def _positions(self) -> dict[Pointer, int]:
        wanted, found = set(self._wanted), dict[Pointer, int]()
        for position in range(len(self.tasks)):
            try:
                pointer = pointer_of(self.tasks.task(position))
            except TaskError as error:
                self.unreadable = self.unreadable or f" (and not all of it can be read: {error})"
                continue
            if pointer in wanted:
                found.setdefault(pointer, position)
                if len(found) == len(wanted):
                    break
        return found


def shown(pointer: Pointer) -> str:
    dataset, row, sample = pointer
    return f"source_dataset = {dataset!r:.60}, source_row = {row}, prepared_sample_id = {sample!r:.60}"
