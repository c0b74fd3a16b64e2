"""Several data sources in one run, each with a cursor of its own."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reroll.api import CheckpointError
from reroll.tasks.binding import POLL_SECONDS
from reroll.tasks.cursor import Cursor, Dispatch
from reroll.tasks.state import check_schema, entries

SCHEMA = 1
REST_SECONDS = 10.0
"""For which a source that had nothing is passed over, at most; one that is waited for a shorter time rests as long, but
no shorter than sets are polled, since dispatches that fail at once would be all that a run does."""


@dataclass
class Source:
    """A cursor with its share.

    Attributes:
        ratio: its share of the dispatches, relative to the others'.
        most: dispatches in flight, None for no bound.
        owed: dispatches in units of its share, so that the source with the fewest is next.
    """

    name: str
    cursor: Cursor
    ratio: float
    most: int | None = None
    owed: float = 0.0
    in_flight: int = 0
    rests_until: float = 0.0

    @property
    def waits(self) -> bool:
        return self.most is not None and self.in_flight >= self.most


class Mixture:
    """Cursors as one, drawn from by ratio; see `Cursor` for what the members mean.

    The next dispatch is of the source that is furthest behind its share, so that at any moment every source is within
    one dispatch of it, and a resumed run goes on as an unbroken one would. A source that cannot give is passed over and
    does not catch up later: what it missed would come all at once.

    Args:
        sources: those with equal standing are asked in this order.
        clock: seconds, for resting.
    """

    def __init__(self, sources: Sequence[Source], clock: Callable[[], float] = time.monotonic) -> None:
        self.sources = {source.name: source for source in sources}
        self._clock = clock
        self._taken = 0.0
        """When something was last asked for."""
        self._again: deque[str] = deque()
        """Sources of the dispatches that a checkpoint left unfinished; they count for no share a second time."""

    @property
    def skipped(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for source in self.sources.values():
            total.update(source.cursor.skipped)
        return total

    @property
    def dry(self) -> bool:
        return all(source.cursor.dry for source in self.sources.values())

    @property
    def resting(self) -> float | None:
        resting = [source.rests_until for source in self.sources.values() if not source.cursor.dry]
        # Those that the last take passed over: a rest that has ended since then has to wake the run as well.
        until = min((moment for moment in resting if moment > self._taken), default=None)
        return None if until is None else max(until - self._clock(), 0.0)

    def take(self) -> Dispatch | None:
        """The next dispatch; None when no source can give one now, for good only if the mixture is `dry`."""
        for position, name in enumerate(self._again):
            source = self.sources[name]
            if source.waits:
                continue  # what waited in the buffer when the checkpoint was made was in flight no more
            dispatch = source.cursor.take()
            assert dispatch is not None, "as many were left over as are listed"
            del self._again[position]
            source.in_flight += 1
            return dispatch._replace(source=name)
        now = self._taken = self._clock()
        able = [source for source in self.sources.values() if not source.waits and source.rests_until <= now]
        for source in sorted(able, key=lambda source: source.owed):
            dispatch = source.cursor.take()
            if dispatch is None:
                continue
            standing = source.owed
            source.owed += 1 / source.ratio
            source.in_flight += 1
            for other in self.sources.values():
                other.owed = max(other.owed, standing)
            return dispatch._replace(source=source.name)
        return None

    def give_back(self, dispatch: Dispatch) -> None:
        self.sources[dispatch.source].cursor.give_back(dispatch)

    def left(self, dispatch: Dispatch) -> None:
        self.sources[dispatch.source].in_flight -= 1

    async def bind(self, dispatch: Dispatch) -> Dispatch | None:
        source = self.sources[dispatch.source]
        bound = await source.cursor.bind(dispatch)
        if bound is None:
            source.rests_until = self._clock() + min(REST_SECONDS, max(POLL_SECONDS, source.cursor.patience))
        return bound

    def unbound(self, dispatch: Dispatch) -> str:
        return f"data source {dispatch.source!r}: {self.sources[dispatch.source].cursor.unbound(dispatch)}"

    def state(self, unfinished: Iterable[Dispatch]) -> dict[str, Any]:
        listed = list(unfinished)
        return {
            "schema": SCHEMA,
            "again": [*(item.source for item in listed), *self._again],
            "sources": {
                name: {
                    "owed": source.owed,
                    "cursor": source.cursor.state(item for item in listed if item.source == name),
                }
                for name, source in self.sources.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        check_schema("mixture", state, SCHEMA)
        saved = entries("mixture.sources", state.get("sources"))
        if saved.keys() != self.sources.keys():
            raise CheckpointError(
                f"mixture.sources: {', '.join(saved)} in the checkpoint, {', '.join(self.sources)} now"
            )
        again = state.get("again")
        if not isinstance(again, list) or not set(map(str, again)) <= self.sources.keys():
            raise CheckpointError(f"mixture.again: {again!r} is no list of sources")
        for name, source in self.sources.items():
            found = entries(f"mixture.sources.{name}", saved[name])
            owed = found.get("owed")
            if isinstance(owed, bool) or not isinstance(owed, int | float) or not 0 <= owed < float("inf"):
                raise CheckpointError(f"mixture.sources.{name}.owed: {owed!r} is no number of at least 0")
            source.cursor.restore(entries(f"mixture.sources.{name}.cursor", found.get("cursor")))
            source.owed = float(owed)
        # A cursor left out what a filter of now skips, and nothing new may come in its place uncounted.
        kept = {name: source.cursor.left_over for name, source in self.sources.items()}
        for name in again:
            if kept[name]:
                kept[name] -= 1
                self._again.append(name)
