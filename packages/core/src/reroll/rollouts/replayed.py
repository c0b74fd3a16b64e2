"""Collections from saved rollouts, in place of a producer: the same batches again, without engines or verifiers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from reroll.api import RerollError
from reroll.rollouts.buffer import Collection, CollectionSize, FinishedGroup
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.stopwatch import Stopwatch
from reroll.tasks.cursor import Dispatch
from reroll.traces.saved import SavedGroup, read_groups, step_directory


class SavedCollections:
    """A producer whose collections were made by another run; see `Producer` for what the members mean.

    Args:
        source: the other run's folder.
        siblings, tokenizer_sha256: of this run; groups of another size, or of other tokens, are refused.
        collections: number of all collections of this run; the first of them is `first`.
    """

    def __init__(
        self,
        source: Path,
        events: GroupEvents,
        size: CollectionSize,
        *,
        siblings: int,
        tokenizer_sha256: str,
        collections: int,
        first: int = 0,
    ) -> None:
        self.generated_tokens = 0
        self.generating = Stopwatch()
        self.blocked = Stopwatch()
        self.trainer_waiting = Stopwatch()
        self._source = source
        self._events = events
        self._size = size
        self._siblings = siblings
        self._tokenizer_sha256 = tokenizer_sha256
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
            if any(step_directory(self._source, later).is_dir() for later in range(self._next + 1, self._end)):
                raise RerollError(f"debug.load_rollouts: {folder} is missing, and later collections are there")
            return None
        self.trainer_waiting.enter()
        try:
            saved = await asyncio.to_thread(read_groups, folder)
        finally:
            self.trainer_waiting.leave()
        taken = [item for item in saved if item.disposition != "expired"]
        self._check(folder, taken)
        groups = [self._dispatched(item) for item in taken]
        collection = Collection(self._next, version, self._size, groups, expired=[])
        self._next += 1
        return collection

    def _check(self, folder: Path, taken: list[SavedGroup]) -> None:
        """RerollError unless the groups are as this run's own would be: responses have places by their numbers."""
        if not taken:
            raise RerollError(f"debug.load_rollouts: {folder} holds no group that was taken for a collection")
        passed = sum(item.decision.outcome == "passed" for item in taken)
        if passed > self._size.batch:
            raise RerollError(
                f"debug.load_rollouts: {folder} holds {passed} groups to train on, rollout.rollout_batch_size is "
                f"{self._size.batch}; set it to the other run's"
            )
        for item in taken:
            if len(item.group.traces) != self._siblings:
                raise RerollError(
                    f"debug.load_rollouts: {folder} holds groups of {len(item.group.traces)} responses, "
                    f"rollout.n_samples_per_prompt is {self._siblings}; set it to the other run's"
                )
            found = item.group.rendered.tokenizer_sha256
            if found != self._tokenizer_sha256:
                raise RerollError(
                    f"debug.load_rollouts: the rollouts in {folder} are of another tokenizer (SHA-256 {found[:12]}…) "
                    f"than model.path has ({self._tokenizer_sha256[:12]}…)"
                )

    def _dispatched(self, saved: SavedGroup) -> FinishedGroup:
        """The group as one of this run: its ledger counts it, under a number of its own."""
        group = saved.group
        group.group_index = self._events.dispatched()
        self._events.scored(group, saved.decision)
        return FinishedGroup(group, saved.decision, Dispatch(group.task, group.rendered, group.attempt))
