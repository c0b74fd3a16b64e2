"""Rounds of a synchronous run: what is dispatched together is generated together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from reroll.tasks.cursor import Dispatch


class Rounds:
    """Lets a round's dispatches go on together, in the order of dispatch, once all of them are bound: binding takes
    threads different times, and equal runs must make equal batches. Where nothing is to be bound, nothing waits.

    Args:
        together: whether the run dispatches in rounds; otherwise each goes on by itself.
    """

    def __init__(self, together: bool) -> None:
        self._together = together
        self._binding: set[int] = set()
        self._bound: dict[int, asyncio.Future[None]] = {}

    def begin(self, dispatches: Mapping[int, Dispatch]) -> None:
        """These, by group index, have been dispatched in one turn."""
        if self._together and any(dispatch.rendered is None for dispatch in dispatches.values()):
            self._binding.update(dispatches)

    async def bound(self, group_index: int, binding: Coroutine[Any, Any, Dispatch | None]) -> Dispatch | None:
        """What the dispatch was bound to, once the whole round is."""
        found = await binding
        if group_index not in self._binding:
            return found
        self._bound[group_index] = turn = asyncio.get_running_loop().create_future()
        self._binding.remove(group_index)
        if not self._binding:
            # Not at once: this one has to wait as well, or it would go on before those that were dispatched earlier.
            asyncio.get_running_loop().call_soon(self._go_on)
        await turn
        return found

    def _go_on(self) -> None:
        bound, self._bound = self._bound, {}
        for _, turn in sorted(bound.items()):
            if not turn.done():
                turn.set_result(None)
