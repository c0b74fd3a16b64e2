"""In which order generation, pauses and weight updates may happen.

As SGLang has it: while generation is paused, updates go on at once and new requests wait; otherwise an update waits for
the requests in flight and holds up new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Aborted(Exception):
    """A request was to end while it still waited."""


class Ticket:
    """One request at the gate. `aborted` ends its wait."""

    def __init__(self) -> None:
        self.aborted = False
        self.inside = False


class Gate:
    """Lets requests and updates in.

    Attributes:
        paused: whether new requests wait for `reopen`.
    """

    def __init__(self) -> None:
        self.paused = False
        self._tickets: set[Ticket] = set()
        self._waiting_updates = 0
        self._updating = False
        self._changed = asyncio.Condition()
        self._controls = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        return sum(ticket.inside for ticket in self._tickets)

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet, in flight or not."""
        return len(self._tickets)

    @asynccontextmanager
    async def request(self, ticket: Ticket) -> AsyncIterator[None]:
        """Waits for its turn and counts as in flight until the end; Aborted if it is ended before."""
        self._tickets.add(ticket)
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: ticket.aborted or not (self.paused or self._updating or self._waiting_updates)
                )
            if ticket.aborted:
                raise Aborted
            ticket.inside = True
            yield
        finally:
            self._tickets.discard(ticket)
            await self._notify()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Weights change inside. Not paused, it begins once nothing is in flight any more."""
        async with self._controls:
            # `pause` and `reopen` take the same lock: nothing goes on under half of an update.
            if self.paused:
                yield
                return
        self._waiting_updates += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._updating and not self.in_flight)
                self._updating = True
        finally:
            self._waiting_updates -= 1
            await self._notify()
        try:
            yield
        finally:
            self._updating = False
            await self._notify()

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """New requests wait from here on; inside, those in flight are dealt with."""
        async with self._controls:
            self.paused = True
            yield

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[None]:
        """Inside, generation is started again; then new requests come in."""
        async with self._controls:
            yield
            self.paused = False
        await self._notify()

    async def abort(self, ticket: Ticket) -> None:
        ticket.aborted = True
        await self._notify()

    async def idle(self, timeout: float) -> bool:
        """Whether nothing is in flight, after waiting up to `timeout` seconds for that."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: not self.in_flight)
        except TimeoutError:
            return not self.in_flight
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
