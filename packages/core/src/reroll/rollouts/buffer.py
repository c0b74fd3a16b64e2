"""The buffer of finished groups, between scoring and training."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from reroll.api import Decision, Disposition, Group
from reroll.tasks.cursor import Dispatch


@dataclass(frozen=True, eq=False)
class FinishedGroup:
    """A scored group with what was decided about it, and the dispatch that it came from."""

    group: Group
    decision: Decision
    dispatch: Dispatch

    @cached_property
    def age(self) -> tuple[int, int]:
        """Sorts by the version of the oldest token, then by dispatch; what has no token comes first."""
        versions = [version for trace in self.group.traces for version in trace.weight_versions]
        return min(versions, default=-1), self.group.group_index

    @property
    def passed(self) -> bool:
        return self.decision.outcome == "passed"

    @property
    def generated(self) -> bool:
        """Whether any response came to its end."""
        return any(trace.is_completed for trace in self.group.traces)

    def leaves(self, passed: Disposition) -> Disposition:
        """How the group leaves, if one that passed the filters leaves as `passed`: what did not pass is what it is."""
        if self.decision.outcome == "passed":
            return passed
        return self.decision.outcome if self.generated else "failed"


@dataclass(frozen=True)
class CollectionSize:
    """What a collection may hold.

    Attributes:
        batch: groups that passed the filters; with so many it is full.
        most: decided groups; with so many it is closed, full or not. Equal to `batch`, nothing is over-sampled.
        updates: optimizer steps that it feeds.
        max_staleness: largest age of a group's oldest token, in optimizer steps, at the last of those steps.
    """

    batch: int
    most: int
    updates: int
    max_staleness: int

    def last_step(self, version: int) -> int:
        """The trainer's version at the last optimizer step of a collection that is taken at `version`."""
        return version + self.updates - 1

    def is_stale(self, group: Group, version: int) -> bool:
        """Whether the group is too old for a collection that is taken at trainer version `version`."""
        return group.staleness(self.last_step(version)) > self.max_staleness

    @property
    def ahead(self) -> int:
        """Collections that may be under way beyond the one that the trainer waits for, so that none of their groups
        can pass the bound: those started `ahead` collections before their use are
        `ahead * updates + updates - 1` steps old at its last step. 0 is synchronous."""
        return (self.max_staleness + 1) // self.updates - 1


@dataclass(frozen=True)
class Collection:
    """What one visit to the buffer gave.

    Attributes:
        version: the trainer's when the collection was taken.
        groups: decided ones, in the order of dispatch; those that passed are trained on.
        expired: groups that were too old, since the last collection.
    """

    rollout_id: int
    version: int
    size: CollectionSize
    groups: Sequence[FinishedGroup]
    expired: Sequence[FinishedGroup]

    @property
    def passed(self) -> list[Group]:
        return [item.group for item in self.groups if item.passed]

    def places(self) -> list[int]:
        """Of the groups that passed, among the `size.batch` of a full collection: spread evenly, so that its optimizer
        steps are about equally large."""
        passed, places = len(self.passed), min(self.size.batch, len(self.groups))
        return [number * places // passed for number in range(passed)]

    def staleness(self) -> list[int]:
        """Of every group, at the first of the optimizer steps that use it; of what did not pass, at the first step of
        the collection. Steps without any group are not made."""
        steps = [place * self.size.updates // self.size.batch for place in self.places()]
        rank = {step: number for number, step in enumerate(sorted(set(steps)))}
        ranks = iter([rank[step] for step in steps])
        return [item.group.staleness(self.version) + (next(ranks) if item.passed else 0) for item in self.groups]


@dataclass
class GroupBuffer:
    """Whole groups, each with its decision; those with the oldest tokens first. `capacity` counts groups: the producer
    dispatches none that would not find room."""

    size: CollectionSize
    capacity: int
    groups: list[FinishedGroup] = field(default_factory=list)
    passed: int = 0

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def full(self) -> bool:
        return len(self.groups) >= self.capacity

    def put(self, finished: FinishedGroup) -> None:
        assert not self.full, "nothing is dispatched without room for it"
        bisect.insort(self.groups, finished, key=_age)
        self.passed += finished.passed

    def expire(self, version: int) -> list[FinishedGroup]:
        """Takes out the groups that are too old for a collection of `version`."""
        first_fresh = self.size.last_step(version) - self.size.max_staleness
        end = bisect.bisect_left(self.groups, (first_fresh, -1), key=_age)
        stale: list[FinishedGroup] = []
        kept: list[FinishedGroup] = []
        for item in self.groups[:end]:
            (stale if self.size.is_stale(item.group, version) else kept).append(item)
        self.groups[:end] = kept
        self.passed -= sum(item.passed for item in stale)
        return stale

    @property
    def ready(self) -> bool:
        """Whether a collection can be taken."""
        return self.passed >= self.size.batch or len(self.groups) >= self.size.most

    def take(self) -> list[FinishedGroup]:
        """A collection, or what there is of one, in the order of dispatch. Groups with the oldest tokens go first, so
        that a slow one does not wait until it is too old."""
        passed, count = 0, 0
        for item in self.groups[: self.size.most]:
            count += 1
            passed += item.passed
            if passed == self.size.batch:
                break
        taken = self.groups[:count]
        del self.groups[:count]
        self.passed -= passed
        return sorted(taken, key=lambda item: item.group.group_index)


def _age(item: FinishedGroup) -> tuple[int, int]:
    return item.age
