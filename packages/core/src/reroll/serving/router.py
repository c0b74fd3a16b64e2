"""Routing: which engine serves a group."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from reroll.api import Completion, Engine, EngineError, EngineUnavailable, GenerationRequest

ATTEMPTS = 5
"""Engines that one request may be lost with. What ends every engine that it is sent to must not go on for ever."""


class LeastOutstandingTokensRouter:
    """A group goes to the engine with the fewest outstanding tokens and stays there, so that its siblings share the
    prompt's cache.

    Outstanding are, of every request in flight, the prompt's tokens and the most that it may have sampled.

    A group is on its engine from its first request until `release`, also between two of its requests. Where no engine
    is usable, its first request waits; otherwise a request reaches its engine in the turn of the event loop in which
    it was made, which equal batches in every run depend on.

    A request whose engine is lost is sent to another one as it is: same id, same seed.

    Attributes:
        on_loss: called with an engine that was lost, and the error of the request that showed it.
    """

    def __init__(self, engines: Sequence[Engine], attempts: int = ATTEMPTS) -> None:
        self.engines = list(engines)
        self.on_loss: Callable[[Engine, EngineUnavailable], None] = lambda engine, error: None
        self._attempts = attempts
        self._excluded: set[int] = set()
        self._lost: set[int] = set()
        self._tokens = [0] * len(self.engines)
        # Requests in flight, by the limit that ends the wait for an answer; in order, as runs of one seed are equal.
        self._sent: list[dict[asyncio.Timeout, None]] = [{} for _ in self.engines]
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
            self._evict(number)

    def include(self, engine: Engine) -> None:
        self._excluded.discard(self._number(engine))
        self._wake()

    def lose(self, engine: Engine) -> None:
        """The engine has ended: its groups leave it, what it has in flight is not waited for but sent to others, and
        until `restore` nothing goes to it, be it included or a group pinned to it."""
        number = self._number(engine)
        self._lost.add(number)
        self._evict(number)
        sent, self._sent[number] = self._sent[number], {}
        for limit in sent:
            limit.reschedule(0.0)

    def restore(self, engine: Engine) -> None:
        """A lost engine is back, and usable unless it is excluded."""
        self._lost.discard(self._number(engine))
        self._wake()

    def pin(self, group: str, engine: Engine) -> None:
        """All further requests of the group go to `engine`, be it excluded or not, unless it is lost."""
        number = self._number(engine)
        if number not in self._lost:
            self._pin(group, number)
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
        """Sends the request to the group's engine.

        Raises:
            EngineError: as the engine raised it; or the request was lost with one engine after another.
        """
        reason: EngineUnavailable | None = None
        for _ in range(self._attempts):
            number = self._engine_of(group)
            if number is None:
                number = await self._wait_for_engine(group)
            try:
                return await self._send(number, request)
            except EngineUnavailable as error:
                reason = error
        raise EngineError(
            f"request {request.request_id} was lost with its engine {self._attempts} times; the last reason: {reason}"
        ) from reason

    async def _send(self, number: int, request: GenerationRequest) -> Completion:
        tokens = len(request.input_ids) + request.sampling.max_new_tokens
        self._in_flight[number] += 1
        self._tokens[number] += tokens
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._sent[number][limit] = None
                return await self.engines[number].generate(request)
        except EngineUnavailable as error:
            # One that was sent before the engine was lost says nothing about the engine that has come back since.
            if limit in self._sent[number]:
                del self._sent[number][limit]
                self.lose(self.engines[number])
                self.on_loss(self.engines[number], error)
            raise
        except TimeoutError as error:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            raise EngineUnavailable(f"engine {self.engines[number].address!r} was lost with the request") from error
        finally:
            self._sent[number].pop(limit, None)
            self._tokens[number] -= tokens
            self._in_flight[number] -= 1
            self._settle(number)

    def _number(self, engine: Engine) -> int:
        try:
            return self.engines.index(engine)
        except ValueError:
            known = ", ".join(known.address for known in self.engines)
            raise ValueError(f"engine {engine.address} is not one of this router's, which are {known}") from None

    def _engine_of(self, group: str) -> int | None:
        """The group's engine, for a new group the one with the fewest outstanding tokens; None if there is no usable
        one."""
        number = self._pinned.get(group)
        if number is None:
            out = self._excluded | self._lost
            usable = [number for number in range(len(self.engines)) if number not in out]
            if not usable:
                return None
            number = min(usable, key=lambda number: (self._tokens[number], number))
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

    def _evict(self, number: int) -> None:
        for group in list(self._groups[number]):
            self._unpin(group)

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
