"""The ledger: every dispatch ends in exactly one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from reroll.api import CheckpointError, Disposition
from reroll.tasks.state import counts, entries

DISPOSITIONS: tuple[Disposition, ...] = get_args(Disposition)


class Ledger:
    """Counts dispatches, where they are and how they ended; refuses a move that cannot be.

    A dispatch is first in flight, until its responses are scored, then queued, until it is trained on or left out.
    """

    def __init__(self) -> None:
        self.dispatched = 0
        self.ended: Counter[Disposition] = Counter()
        self._in_flight: set[int] = set()
        self._queued: set[int] = set()

    def dispatch(self) -> int:
        """A new dispatch; gives its number, the group index."""
        group_index = self.dispatched
        self.dispatched += 1
        self._in_flight.add(group_index)
        return group_index

    def queue(self, group_index: int) -> None:
        """The group is whole and scored."""
        assert group_index in self._in_flight, f"group {group_index} is not in flight"
        self._in_flight.remove(group_index)
        self._queued.add(group_index)

    def end(self, group_index: int, disposition: Disposition) -> None:
        assert disposition in DISPOSITIONS, f"group {group_index} ends as {disposition!r}, which is no ending"
        place = self._in_flight if group_index in self._in_flight else self._queued
        assert group_index in place, f"group {group_index} ended before, or was never dispatched"
        place.remove(group_index)
        self.ended[disposition] += 1

    @property
    def in_flight(self) -> int:
        """Dispatches whose responses are being generated or scored."""
        return len(self._in_flight)

    @property
    def queued(self) -> int:
        """Scored groups that have not left yet."""
        return len(self._queued)

    def unfinished(self) -> list[int]:
        """Group indices of everything that has not ended."""
        return sorted(self._in_flight | self._queued)

    def summary(self) -> dict[str, int]:
        """Counts, which add up: dispatched = the six endings + in flight + queued."""
        return {
            "dispatched": self.dispatched,
            **{name: self.ended[name] for name in DISPOSITIONS},
            "in_flight": self.in_flight,
            "queued": self.queued,
        }

    def state(self) -> dict[str, int]:
        """What `restore` needs, as JSON."""
        return self.summary()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from where `state` was taken: group indices follow on, and what had not ended then was `returned`,
        since it is dispatched again. CheckpointError for counts that do not add up."""
        assert not self.dispatched, "a ledger is restored before it is used"
        saved = counts("ledger", entries("ledger", state))
        expected = {"dispatched", *DISPOSITIONS, "in_flight", "queued"}
        if wrong := sorted(expected ^ set(saved)):
            raise CheckpointError(f"ledger: the fields {', '.join(wrong)} are missing or unknown")
        if saved["dispatched"] != sum(saved.values()) - saved["dispatched"]:
            raise CheckpointError(f"ledger: the counts do not add up: {dict(saved)}")
        self.dispatched = saved["dispatched"]
        self.ended = Counter({name: saved[name] for name in DISPOSITIONS if saved[name]})
        self.ended["returned"] += saved["in_flight"] + saved["queued"]
