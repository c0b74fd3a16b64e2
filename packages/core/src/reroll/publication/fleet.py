"""What is known of a run's engines: which are there, and what they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from reroll.api import Engine, EngineUnavailable, RerollError, Router, WorkerDied
from reroll.workers.together import together

T = TypeVar("T")

ANSWER_SECONDS = 20.0
"""An engine that is asked for its version, or a transport that is to finish, counts as silent after so long."""


class Fleet:
    """Engines by position. One is absent from its loss until it was loaded again, in doubt while it may serve anything,
    or it serves one version as a whole; in routing are the last ones alone.

    An EngineUnavailable of any call made here is a loss.

    Attributes:
        reasons: of the losses of engines that are absent.
        on_loss: called when an engine becomes absent, with the reason.
        on_return: called when it is back.
    """

    def __init__(self, engines: Sequence[Engine], router: Router) -> None:
        self.engines = list(engines)
        self.router = router
        self.doubtful: set[int] = set()
        self.reasons: dict[int, EngineUnavailable] = {}
        self.on_loss: list[Callable[[Engine, EngineUnavailable], None]] = []
        self.on_return: list[Callable[[Engine], None]] = []

    @property
    def absent(self) -> set[int]:
        return set(self.reasons)

    def present(self) -> list[int]:
        """Engines in doubt come first, so that a mode which takes one at a time has no two out of routing."""
        there = [number for number in range(len(self.engines)) if number not in self.reasons]
        return sorted(there, key=lambda number: number not in self.doubtful)

    def lose(self, engine: Engine, reason: EngineUnavailable) -> None:
        """The engine has ended; nothing is told of one that is absent already."""
        number = self.engines.index(engine)
        if number in self.reasons:
            return
        self.reasons[number] = reason
        self.doubtful.discard(number)
        self.router.lose(engine)
        for tell in self.on_loss:
            tell(engine, reason)

    def restore(self, engine: Engine) -> None:
        """It is back, and serves the current version as a whole."""
        del self.reasons[self.engines.index(engine)]
        self.router.restore(engine)
        self.router.include(engine)
        for tell in self.on_return:
            tell(engine)

    def none_routed(self) -> bool:
        return len(self.doubtful) + len(self.reasons) == len(self.engines)

    def route(self) -> None:
        """Whatever a mode did to routing, and left undone."""
        for number, engine in enumerate(self.engines):
            if number in self.doubtful:
                self.router.exclude(engine, evict=True)
            else:
                self.router.include(engine)

    def named(self, numbers: Iterable[int]) -> str:
        return ", ".join(self.engines[number].address for number in sorted(numbers))

    async def ask(self, number: int) -> int:
        """The version that the engine serves."""
        return await self._answered(number, self.engines[number].weight_version(), "asked for its weight version")

    async def go_on(self, number: int) -> int:
        """Resumes it, asking for its version at the same time: an engine may answer between two steps only."""
        served, _ = await asyncio.gather(self.ask(number), self._resume(number))
        return served

    async def note_versions(self, found: dict[int, int | None]) -> None:
        """Writes down what every engine that is there serves, as it answers; None where one does not say."""

        async def note(number: int) -> None:
            found[number] = await unless_it_fails(self.ask(number))

        await together(note(number) for number in self.present())

    async def examine(self, version: int, before: Mapping[int, int | None]) -> None:
        """After a publication of `version` that failed: routes to the engines that serve old or new weights as a
        whole, and to no others. `before` it, they served those versions."""
        numbers = self.present()
        whole = await together(self._is_whole(number, version, before.get(number)) for number in numbers)
        found = dict(zip(numbers, whole, strict=True))
        self.doubtful = {number for number in self.present() if not found.get(number)}
        self.route()

    async def _is_whole(self, number: int, version: int, before: int | None) -> bool:
        """Old weights are whole, with the cache that belongs to them, unless the engine was in doubt before. New ones
        are once no prefix of old ones is left in the cache, from which the next group would go on."""
        served = await unless_it_fails(self.ask(number))
        if not await unless_it_fails(_done(self._resume(number))):
            return False
        if served is None or served != version:
            return served is not None and served == before and number not in self.doubtful
        flush = self._answered(number, self.engines[number].flush_cache(), "asked to flush")
        return bool(await unless_it_fails(_done(flush)))

    async def _resume(self, number: int) -> None:
        """A mode may have paused it and not gone on; without a pause it does nothing."""
        await self._answered(number, self.engines[number].resume(), "asked to resume")

    async def _answered(self, number: int, call: Coroutine[Any, Any, T], asked: str) -> T:
        engine = self.engines[number]
        try:
            return await within(ANSWER_SECONDS, call, f"engine {engine.address!r}, {asked},")
        except EngineUnavailable as error:
            self.lose(engine, error)
            raise


async def unless_it_fails(call: Coroutine[Any, Any, T]) -> T | None:
    """What the call gives, None if it raises; a dead worker is told in any case."""
    try:
        return await call
    except WorkerDied:
        raise
    except Exception:
        return None


async def _done(call: Coroutine[Any, Any, None]) -> bool:
    await call
    return True


async def within(seconds: float, coroutine: Coroutine[Any, Any, T], who: str) -> T:
    """RerollError, naming `who`, if it takes longer."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise  # of something inside, which has its own reason
        raise RerollError(f"{who} did not answer within {seconds:g} s") from None


def told(error: Exception) -> str:
    """For a user: an error of ours says all by itself."""
    return str(error) if isinstance(error, RerollError) else f"{type(error).__name__}: {error}"
