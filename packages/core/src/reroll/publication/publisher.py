"""The publisher: runs the selected mode with the selected transport, and answers for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from reroll.api import (
    Admission,
    Engine,
    PluginError,
    PublicationContext,
    PublicationMode,
    PublicationReport,
    RerollError,
    Router,
    Transport,
    WeightSource,
    WorkerDied,
)
from reroll.workers.together import first_cause, together, uninterrupted

T = TypeVar("T")

ATTEMPTS = 2
ANSWER_SECONDS = 20.0
"""An engine that is asked for its version, or a transport that is to finish, counts as silent after so long."""


@dataclass
class Publisher:
    """Brings the engines to the source's weights. `timeout` in seconds.

    The mode decides the order alone. Whatever it does or leaves undone, and unless the run ends with it: the transport
    has finished, admission is open, and in routing are exactly the engines that serve one version as a whole. A failure
    is tried once more.

    Attributes:
        warn: called with what the user should know of a publication that goes on all the same.
    """

    mode: PublicationMode
    transport: Transport
    source: WeightSource
    engines: Sequence[Engine]
    router: Router
    admission: Admission
    timeout: float
    warn: Callable[[str], None] = lambda message: None
    _doubtful: set[int] = field(default_factory=set, init=False)
    """Engines, by position, that may serve anything: out of routing until a load succeeded."""

    async def publish(self, version: int) -> PublicationReport:
        """One publication.

        Raises:
            WorkerDied: at once.
            RerollError: the publication took longer than the timeout.
            PluginError: the mode says it is done, and an engine serves something else.
            Exception: what the second attempt raised; a note says what the first did.
        """
        if not self.engines:
            return PublicationReport(version=version, mode=self.mode.name)
        clock = asyncio.get_running_loop().time
        start = clock()
        in_flight = sum(self.router.in_flight(engine) for engine in self.engines)
        before: dict[int, int | None] = {}
        try:
            async with asyncio.timeout(self.timeout) as limit:
                await together(self._note(number, before) for number in range(len(self.engines)))
                report = await self._until_done(version, before, start + self.timeout)
        except TimeoutError:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            await self._examine(version, before)
            raise RerollError(
                f"publication mode {self.mode.name!r}: publication of version {version} took longer than "
                f"{self.timeout:g} s; raise serving.publication_timeout, or look into the logs of the workers"
            ) from None
        finally:
            self._route()
            self.admission.open()
        return replace(report, seconds=clock() - start, in_flight=in_flight)

    async def _until_done(self, version: int, before: Mapping[int, int | None], deadline: float) -> PublicationReport:
        """Two attempts. Admission stays as the first one left it, so that a barrier needs not drain again."""
        this_task = asyncio.current_task()
        assert this_task is not None
        cancelled = this_task.cancelling()
        failure: Exception | None = None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # In a task of its own: a task group that failed leaves its task counted as cancelled (Python 3.11,
                # 3.12), in which no timeout is told from a cancellation any more.
                report = await asyncio.create_task(self._attempt(version, deadline))
                return replace(report, attempts=attempt)
            except WorkerDied:
                raise
            except asyncio.CancelledError as error:
                if this_task.cancelling() > cancelled:
                    raise
                raise PluginError(f"publication mode {self.mode.name!r} was cancelled from within") from error
            except Exception as error:
                if this_task.cancelling() > cancelled:  # and something told it as an error of its own
                    raise asyncio.CancelledError from error
                if failure is not None:
                    error.add_note(f"the attempt before had failed: {_told(failure)}")
                await self._examine(version, before)
                if attempt == ATTEMPTS:
                    raise
                failure = error
                self._tell(version, error)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, version: int, deadline: float) -> PublicationReport:
        """Runs the mode and checks that it did what it says."""
        # Engines that are out of routing come first, so that a mode which takes one at a time has no two out.
        numbers = sorted(range(len(self.engines)), key=lambda number: number not in self._doubtful)
        context = PublicationContext(
            version=version,
            engines=[self.engines[number] for number in numbers],
            router=self.router,
            admission=_Stranded(self.admission, self.router, self.engines) if self._none_routed() else self.admission,
            transport=self.transport,
            source=self.source,
            timeout=deadline - asyncio.get_running_loop().time(),
        )
        try:
            report = await self.mode.publish(context)
        except BaseException as error:
            try:
                await uninterrupted(self._finish())
            except Exception as trouble:
                error.add_note(f"the transport could not finish either: {_told(trouble)}")
            if isinstance(error, SystemExit):  # would end the process without a word
                raise PluginError(f"publication mode {self.mode.name!r} raised SystemExit: {error}") from error
            if isinstance(error, BaseExceptionGroup):  # of a mode's task group
                raise first_cause(error, WorkerDied) from error
            raise
        await uninterrupted(self._finish())
        name = self.mode.name
        if not isinstance(report, PublicationReport):
            raise PluginError(f"publication mode {name!r} returned {report!r}; it must return a PublicationReport")
        for engine, served in zip(
            self.engines, await together(self._go_on(engine) for engine in self.engines), strict=True
        ):
            if served != version:
                raise PluginError(
                    f"publication mode {name!r} says that version {version} is served, but engine {engine.address!r} "
                    f"serves version {served}; the mode must stage and commit on every engine"
                )
        self._doubtful.clear()
        return replace(report, version=version, mode=name, engines=[engine.address for engine in self.engines])

    async def _finish(self) -> None:
        await _within(ANSWER_SECONDS, self.transport.finish(), f"transport {self.transport.name!r}, asked to finish,")

    async def _ask(self, engine: Engine) -> int:
        """The version that the engine serves."""
        asked = f"engine {engine.address!r}, asked for its weight version,"
        return await _within(ANSWER_SECONDS, engine.weight_version(), asked)

    async def _go_on(self, engine: Engine) -> int:
        """Resumes it, asking for its version at the same time: an engine may answer between two steps only."""
        served, _ = await asyncio.gather(self._ask(engine), self._resume(engine))
        return served

    async def _resume(self, engine: Engine) -> None:
        """A mode may have paused it and not gone on; without a pause it does nothing."""
        await _within(ANSWER_SECONDS, engine.resume(), f"engine {engine.address!r}, asked to resume,")

    async def _note(self, number: int, before: dict[int, int | None]) -> None:
        before[number] = await self._answer(self.engines[number])

    async def _answer(self, engine: Engine) -> int | None:
        """The version that the engine serves; None if it does not say."""
        return await _unless_it_fails(self._ask(engine))

    async def _examine(self, version: int, before: Mapping[int, int | None]) -> None:
        """After a failure: routes to the engines that serve old or new weights as a whole, and to no others."""
        numbers = range(len(self.engines))
        whole = await together(self._is_whole(number, version, before.get(number)) for number in numbers)
        self._doubtful = {number for number in numbers if not whole[number]}
        self._route()

    def _route(self) -> None:
        """Whatever the mode did to routing, and left undone."""
        for number, engine in enumerate(self.engines):
            if number in self._doubtful:
                self.router.exclude(engine, evict=True)
            else:
                self.router.include(engine)

    async def _is_whole(self, number: int, version: int, before: int | None) -> bool:
        """Old weights are whole, with the cache that belongs to them, unless the engine was in doubt before. New ones
        are once no prefix of old ones is left in the cache, from which the next group would go on."""
        engine = self.engines[number]
        served = await self._answer(engine)
        if not await _unless_it_fails(_done(self._resume(engine))):
            return False
        if served is None or served != version:
            return served is not None and served == before and number not in self._doubtful
        flush = _within(ANSWER_SECONDS, engine.flush_cache(), f"engine {engine.address!r}, asked to flush,")
        return bool(await _unless_it_fails(_done(flush)))

    def _none_routed(self) -> bool:
        return len(self._doubtful) == len(self.engines)

    def _tell(self, version: int, error: Exception) -> None:
        out = [self.engines[number].address for number in sorted(self._doubtful)]
        until = f" Until it succeeds, no requests go to {', '.join(out)}." if out else ""
        message = f"publication of version {version} failed and is tried once more: {_told(error)}.{until}"
        self.warn(message)


@dataclass
class _Stranded:
    """The gate while every engine is out of routing: what was admitted needs one to go on, and engines are not loaded
    before it has ended. What counts as in flight is therefore what runs on them."""

    admission: Admission
    router: Router
    engines: Sequence[Engine]

    def close(self) -> None:
        self.admission.close()

    def open(self) -> None:
        self.admission.open()

    async def drained(self) -> None:
        await together(self.router.drained(engine) for engine in self.engines)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RerollError) else f"{type(error).__name__}: {error}"


async def _unless_it_fails(call: Coroutine[Any, Any, T]) -> T | None:
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


async def _within(seconds: float, coroutine: Coroutine[Any, Any, T], who: str) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise  # of something inside, which has its own reason
        raise RerollError(f"{who} did not answer within {seconds:g} s") from None
