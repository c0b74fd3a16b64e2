"""The ledger: every dispatch ends in exactly one way."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from reroll.api import Disposition

DISPOSITIONS: tuple[Disposition, ...] = get_args(Disposition)


class Ledger:
    """Counts dispatches and how they ended; refuses an ending that cannot be."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.ended: Counter[Disposition] = Counter()
        self._in_flight: dict[int, str] = {}

    def dispatch(self, group_index: int, task_key: str) -> None:
        assert group_index not in self._in_flight, f"group {group_index} is dispatched twice"
        self._in_flight[group_index] = task_key
        self.dispatched += 1

    def end(self, group_index: int, disposition: Disposition) -> None:
        assert group_index in self._in_flight, f"group {group_index} ended before, or was never dispatched"
        del self._in_flight[group_index]
        self.ended[disposition] += 1

    @property
    def in_flight(self) -> dict[int, str]:
        """Group index → task key of what has not ended."""
        return dict(self._in_flight)

    def summary(self) -> dict[str, int]:
        """Counts, which add up: dispatched = the endings + in flight."""
        return {
            "dispatched": self.dispatched,
            **{name: self.ended[name] for name in DISPOSITIONS},
            "in_flight": len(self._in_flight),
        }
