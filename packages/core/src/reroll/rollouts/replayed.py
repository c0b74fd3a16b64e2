"""Collections from saved rollouts, in place of a producer: the same batches again, without engines or verifiers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from reroll.api import ConfigSection, Problem, RerollError, RunFile
from reroll.rollouts.buffer import Collection, CollectionSize, FinishedGroup
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.stopwatch import Stopwatch
from reroll.tasks.cursor import Dispatch
from reroll.traces.saved import SavedGroup, read_groups, step_directory


class DebugSection(ConfigSection):
    section: ClassVar[str] = "debug"

    load_rollouts: Path | None = None
    """A run's folder: train on its saved rollouts, collection by collection, instead of generating. No engine is
    started, and nothing is scored, recorded or evaluated."""

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        if self.load_rollouts is not None and not step_directory(self.load_rollouts, 0).is_dir():
            yield Problem(
                "debug.load_rollouts",
                f"{str(self.load_rollouts)!r} has no {step_directory(Path(), 0)}",
                "give the folder of a run that saved rollouts",
            )


class SavedCollections:
    """A producer whose collections were made by another run; see `Producer` for what the members mean.

    Args:
        source: the other run's folder.
        collections: number of all collections of this run; the first of them is `first`.
    """

    def __init__(
        self, source: Path, events: GroupEvents, size: CollectionSize, *, collections: int, first: int = 0
    ) -> None:
        self.generated_tokens = 0
        self.generating = Stopwatch()
        self.blocked = Stopwatch()
        self.trainer_waiting = Stopwatch()
        self._source = source
        self._events = events
        self._size = size
        self._next = first
        self._end = collections

    def start(self, tasks: asyncio.TaskGroup) -> None:
        pass

    def stop(self) -> None:
        pass

    def evaluate(self, begins: bool) -> None:
        raise AssertionError("there is no engine to evaluate with")

    def unfinished(self) -> list[Dispatch]:
        return []

    def leftovers(self) -> tuple[list[FinishedGroup], list[FinishedGroup]]:
        return [], []

    async def collect(self, version: int) -> Collection | None:
        """The next saved collection; None where the other run ended."""
        assert self._next < self._end, "no further collection was announced"
        folder = step_directory(self._source, self._next)
        if not folder.is_dir():
            return None
        self.trainer_waiting.enter()
        try:
            saved = await asyncio.to_thread(read_groups, folder)
        finally:
            self.trainer_waiting.leave()
        groups = [self._dispatched(item) for item in saved if item.disposition != "expired"]
        if not groups:
            raise RerollError(f"debug.load_rollouts: {folder} holds no group that was taken for a collection")
        collection = Collection(self._next, version, self._size, groups, expired=[])
        self._next += 1
        return collection

    def _dispatched(self, saved: SavedGroup) -> FinishedGroup:
        """The group as one of this run: its ledger counts it, under a number of its own."""
        group = saved.group
        group.group_index = self._events.dispatched()
        self._events.scored(group, saved.decision)
        return FinishedGroup(group, saved.decision, Dispatch(group.task, group.rendered, group.attempt))
