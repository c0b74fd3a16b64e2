"""How the rollouts of a folder were made: what is delegated to the source of a derived task."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from reroll.api import Harness, Judge, PluginError, Problem, RerollError, RunFile, Selection, TaskError, TaskSet
from reroll.reporting.config import RUN_FILE
from reroll.rollouts.config import RolloutSection
from reroll.tasks.config import DataSection, DataSource
from reroll.tasks.index import bases

THIS_RUN = "this run"


class SourceError(RerollError, ValueError):
    """What is to be replayed was made in a way that cannot be found out, or not repeated."""


@dataclass(frozen=True)
class SourceRun:
    """The run whose rollouts are replayed, as far as a derived task needs it.

    Attributes:
        run: gives components; of the run that replays.
        where: names the source run in errors.
    """

    run: RunFile
    data: DataSection
    rollout: RolloutSection
    where: str

    def sources(self, names: Sequence[str] | None) -> list[DataSource]:
        """Its data sources of these names; None for all whose rollouts are no replay."""
        listed = self.data.all_sources()
        if names is None:
            return [source for source in listed if not self.is_lazy(source)]
        return [source for source in listed if source.name in names]

    def find(self, env_name: str | None) -> DataSource | None:
        """The data source of that name; where there is only one, it is that one."""
        listed = self.data.all_sources()
        return next((source for source in listed if source.name == env_name), listed[0] if len(listed) == 1 else None)

    def selections(self, source: DataSource) -> list[Selection]:
        """The task sets that its tasks are of; several where it is an index of them."""
        with self._found_here():
            try:
                return bases(source.task_set, self.run)
            except TaskError as error:
                raise SourceError(
                    f"is required: what the tasks of {source.name!r} in {self.where} are of cannot be read: {error}"
                ) from None

    def task_set_classes(self, source: DataSource) -> list[type[TaskSet]]:
        with self._found_here():
            return [cast(type[TaskSet], self.run.component("task_sets", item.name)) for item in self.selections(source)]

    def is_lazy(self, source: DataSource) -> bool:
        return any(task_set.lazy for task_set in self.task_set_classes(source))

    def task_set_configs(self, source: DataSource) -> list[Any]:
        with self._found_here():
            return [
                task_set.Config(**item.options)
                for task_set, item in zip(self.task_set_classes(source), self.selections(source), strict=True)
            ]

    @contextmanager
    def _found_here(self) -> Iterator[None]:
        """What is not installed here, or has other options here, is a SourceError: nobody else looks at the components
        of another run, as somebody does at those of this one."""
        try:
            yield
        except (PluginError, ValidationError) as error:
            if self.where == THIS_RUN:
                raise
            raise SourceError(f"is required: {self.where} selects what cannot be had here: {error}") from None

    def harness(self, source: DataSource | None) -> Selection:
        """What ran its conversations."""
        return (source and source.harness) or self.rollout.harness

    def judges(self) -> dict[str, Judge]:
        weights = self.data.weights()
        with self._found_here():
            return {
                item.name: Judge(
                    self.run.make("verifiers", item), weights[item.name], self.run.distribution("verifiers", item.name)
                )
                for item in self.data.verifiers
            }

    def problems(self, key: str, names: Sequence[str] | None, allow_container: bool) -> Iterator[Problem]:
        """What cannot be delegated, of the sources that are replayed; SourceError for what cannot be had here."""
        listed = {source.name for source in self.data.all_sources()}
        for name in names or ():
            if name not in listed:
                yield Problem(
                    f"{key}.source_envs",
                    f"{name!r} is no data source of {self.where}",
                    f"it has {', '.join(sorted(listed))}",
                )
        for source in self.sources(names):
            self.task_set_configs(source)
            with self._found_here():
                harness: Harness = self.run.make("harnesses", self.harness(source))
            if not harness.resumable:
                yield Problem(
                    f"{key}.source_envs",
                    f"the harness {harness.name!r} of {source.name!r} in {self.where} cannot begin in the middle of a "
                    "conversation",
                    "leave that data source out",
                )
            if self.data.weights(source) != self.data.weights():
                yield Problem(
                    f"{key}.source_envs",
                    f"{source.name!r} in {self.where} has verifier_weights of its own, and a replay has one weight for "
                    "each verifier",
                    "leave that data source out",
                )
            task_sets = self.task_set_classes(source)
            for task_set in task_sets:
                if task_set.judges is not TaskSet.judges and not task_set.lazy:
                    yield Problem(
                        f"{key}.source_envs",
                        f"the task set {task_set.name!r} of {source.name!r} in {self.where} brings verifiers of its "
                        "own, which cannot be asked about saved tasks",
                        "leave that data source out",
                    )
            if any(task_set.container for task_set in task_sets) and not allow_container:
                yield Problem(
                    f"{key}.allow_container",
                    f"tasks of {source.name!r} in {self.where} run in containers, whose state is not saved with a "
                    "rollout: a replayed one begins in a fresh container",
                    "set allow_container = true if that does no harm, or leave that data source out",
                )


def this_run(run: RunFile) -> SourceRun:
    """The run that replays itself."""
    return SourceRun(run, run.get(DataSection), run.get(RolloutSection), THIS_RUN)


def read_source_run(folder: Path, run: RunFile) -> SourceRun | None:
    """The run whose folder it is, from the resolved run file beside its rollouts; None where there is none, and
    SourceError for one that cannot be used. Sections that a derived task does not need are not looked at."""
    path = folder / RUN_FILE
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    try:
        data, rollout = DataSection(**_section(table, "data")), RolloutSection(**_section(table, "rollout"))
    except (ValidationError, TypeError) as error:
        raise SourceError(f"{path} is no run file that this version reads: {error}") from None
    return SourceRun(run, data, rollout, str(path))


def _section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"[{name}] is {found!r}, no table")
    return found
