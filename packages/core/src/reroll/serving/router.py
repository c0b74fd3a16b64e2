"""Routing: which engine serves a group."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from reroll.api import Completion, Engine, GenerationRequest


class LeastLoadedRouter:
    """A group goes to the engine with the fewest requests in flight and stays there, so that its siblings share
    the prompt's cache.

    A group is on its engine from its first request until `release`, also between two of its requests. Where no engine
    is usable, its first request waits; otherwise a request reaches its engine in the turn of the event loop in which
    it was made, which equal batches in every run depend on.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = list(engines)
        self._excluded: set[int] = set()
        self._in_flight = [0] * len(self.engines)
        self._pinned: dict[str, int] = {}
        self._groups: list[set[str]] = [set() for _ in self.engines]
        self._left = [asyncio.Event() for _ in self.engines]
        # Requests without an engine by order of arrival; one that has to wait again keeps its place.
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._arrivals = itertools.count()

    def exclude(self, engine: Engine, evict: bool = False) -> None:
        """No new group goes to `engine`. With `evict` its groups leave it: what they have in flight there finishes,
        and their next requests are new groups' to the router."""
        number = self._number(engine)
        self._excluded.add(number)
        if evict:
            for group in list(self._groups[number]):
                self._unpin(group)

    def include(self, engine: Engine) -> None:
        self._excluded.discard(self._number(engine))
        self._wake()

    def pin(self, group: str, engine: Engine) -> None:
        """All further requests of the group go to `engine`, be it excluded or not."""
        self._pin(group, self._number(engine))
        self._wake()

    def release(self, group: str) -> None:
        """Forgets a group that has ended."""
        self._unpin(group)

    def in_flight(self, engine: Engine) -> int:
        return self._in_flight[self._number(engine)]

    async def drained(self, engine: Engine) -> None:
        """Waits until no group is on `engine` and it has no request of one that has left."""
        number = self._number(engine)
        while self._groups[number] or self._in_flight[number]:
            self._left[number].clear()
            await self._left[number].wait()

    async def generate(self, group: str, request: GenerationRequest) -> Completion:
        """Sends the request to the group's engine."""
        number = self._engine_of(group)
        if number is None:
            number = await self._wait_for_engine(group)
        self._in_flight[number] += 1
        try:
            return await self.engines[number].generate(request)
        finally:
            self._in_flight[number] -= 1
            self._settle(number)

    def _number(self, engine: Engine) -> int:
        try:
            return self.engines.index(engine)
        except ValueError:
            known = ", ".join(known.address for known in self.engines)
            raise ValueError(f"engine {engine.address} is not one of this router's, which are {known}") from None

    def _engine_of(self, group: str) -> int | None:
        """The group's engine, the least loaded one for a new group; None if there is no usable one."""
        number = self._pinned.get(group)
        if number is None:
            usable = [number for number in range(len(self.engines)) if number not in self._excluded]
            if not usable:
                return None
            number = min(usable, key=lambda number: (self._in_flight[number], number))
            self._pin(group, number)
        return number

    async def _wait_for_engine(self, group: str) -> int:
        arrival = next(self._arrivals)
        try:
            while (number := self._engine_of(group)) is None:
                self._waiting[arrival] = asyncio.get_running_loop().create_future()
                await self._waiting[arrival]
        finally:
            self._waiting.pop(arrival, None)
        return number

    def _wake(self) -> None:
        """Lets waiting requests look for an engine again, in order; each goes to it as soon as it has found one, so
        that the next sees its load."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)

    def _pin(self, group: str, number: int) -> None:
        self._unpin(group)
        self._pinned[group] = number
        self._groups[number].add(group)

    def _unpin(self, group: str) -> None:
        number = self._pinned.pop(group, None)
        if number is not None:
            self._groups[number].remove(group)
            self._settle(number)

    def _settle(self, number: int) -> None:
        """Wakes those who wait for the engine to be empty, if it is."""
        if not self._groups[number] and not self._in_flight[number]:
            self._left[number].set()
