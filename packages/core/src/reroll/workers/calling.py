"""What every controller's side does: calls to a worker's methods that are awaited, until they are answered or the
worker is dead."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from reroll.api import WorkerDied, WorkerSpec
from reroll.workers.frames import PING, Call, Reply, encode

PING_SECONDS = 5.0
MISSED_PINGS = 4
STARTING_PINGS = 24
"""A worker that answers no ping for so many intervals is given up. Intervals are counted instead of seconds, so that
a machine which slept does not kill its workers when it wakes. Before its first answer, while the interpreter starts,
it has `STARTING_PINGS` of them."""


class CallingWorker(ABC):
    """A worker somewhere, whose methods are called.

    Calls made in one turn of the event loop travel in one frame, in order, so that a worker which
    receives them sees them together.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outgoing: list[Call] = []
        self._died: WorkerDied | None = None
        self._closing = False
        self.given_up = ""
        """Why this side killed it, where it did; a part of every account of its end."""
        self.on_death: Callable[[WorkerDied], None] | None = None
        """Called once if the worker ends without having been asked to."""
        self._pinging = asyncio.create_task(self._ping(), name=f"ping {name}")

    @abstractmethod
    def _transmit(self, frame: bytes) -> None:
        """Sends a frame of calls, after those that were sent before."""

    @abstractmethod
    async def _how_it_ended(self) -> tuple[str, str]:
        """How the worker ended, as the rest of a sentence, and its last words."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    async def close(self, timeout: float = 10.0) -> None: ...

    def call(self, method: str, *arguments: Any, **keywords: Any) -> asyncio.Future[Any]:
        return self._send(method, arguments, keywords)

    async def _make(self, spec: WorkerSpec) -> None:
        """Waits until the worker's object is made; raises what making it raised, with the worker ended."""
        try:
            await self._send(spec.target, (), dict(spec.arguments))
        except BaseException:
            await self.close(timeout=0)
            raise

    def _send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._died is not None:
            future.set_exception(self._died)
            return future
        call = Call(next(self._ids), method, arguments, keywords)
        self._waiting[call.id] = future
        if not self._outgoing:
            loop.call_soon(self._flush)
        self._outgoing.append(call)
        return future

    def _flush(self) -> None:
        calls, self._outgoing = self._outgoing, []
        try:
            self._transmit(encode(calls))
        except Exception as error:  # an argument that cannot be pickled
            for call in calls:
                self._resolve(Reply(call.id, None, error))

    def _resolve(self, reply: Reply) -> None:
        future = self._waiting.pop(reply.id, None)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    async def _ping(self) -> None:
        """Notices a worker that neither lives nor dies: stopped, or stuck outside of Python."""
        missed, limit = 0, STARTING_PINGS
        while missed < limit:
            await asyncio.sleep(PING_SECONDS)
            if self._died is not None:
                return
            pong = self._send(PING, (), {})
            pong.add_done_callback(lambda done: done.cancelled() or done.exception())  # a death is told elsewhere
            await asyncio.wait([pong], timeout=PING_SECONDS)
            missed, limit = (0, MISSED_PINGS) if pong.done() else (missed + 1, limit)
        # Noted before the kill: the connection closes with it, and whoever reads it may be the first to mourn.
        self.given_up = f" after it had not answered for {2 * PING_SECONDS * limit:g} s"
        self.kill()
        await self._mourn()

    async def _mourn(self) -> None:
        """Every waiting call fails with the worker's name and its last words. The first reason stays."""
        how, words = await self._how_it_ended()
        if self._closing:
            words = ""
        if self._died is not None:
            return
        self._died = WorkerDied(self.name, f"{how}{self.given_up}" + (f"; its last words:\n{words}" if words else ""))
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._died)
        self._waiting.clear()
        if not self._closing and self.on_death is not None:
            self.on_death(self._died)
