"""The publisher: runs the selected mode with the selected transport, and answers for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from reroll.api import (
    Admission,
    Engine,
    EngineError,
    EngineUnavailable,
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
from reroll.publication.digests import WeightsDiffer, check_equal
from reroll.publication.fleet import ANSWER_SECONDS, Fleet, told, within
from reroll.publication.views import Attributing, Stranded
from reroll.workers.together import first_cause, together, uninterrupted

ATTEMPTS = 2
"""Of one publication; those that the loss of an engine ended do not count."""
LOADS = 3
"""Of an engine that is back. The trainer completes a step during one of them at most, since its next publication waits
for the engine."""

Patience = Callable[[], AbstractAsyncContextManager[object]]
"""Bounds, and counts, the time of what is done inside of it."""


@dataclass
class Publisher:
    """Brings the engines to the source's weights. `timeout` in seconds.

    The mode decides the order alone. Whatever it does or leaves undone, and unless the run ends with it: the transport
    has finished, admission is open, and in routing are exactly the engines that serve one version as a whole. A failure
    is tried once more. Engines that are lost, before or meanwhile, are left out until `readmit`.

    Attributes:
        warn: called with what the user should know of a publication that goes on all the same.
        check_equal: what engines serve afterwards is compared, with each other and with the source.
        check_interval: the same at the first publication after each so many versions; None for never.
    """

    mode: PublicationMode
    transport: Transport
    source: WeightSource
    engines: Sequence[Engine]
    router: Router
    admission: Admission
    timeout: float
    warn: Callable[[str], None] = lambda message: None
    check_equal: bool = False
    check_interval: int | None = None
    fleet: Fleet = field(init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Publications and readmissions exclude each other."""
    _published: int = field(default=0, init=False)
    """The version that engines were last brought to."""
    _attempting: asyncio.Task[PublicationReport] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.engines, self.router)
        self.fleet.on_loss.append(self._interrupt)

    async def publish(self, version: int) -> PublicationReport:
        """One publication; where no engine is there, nothing is carried.

        Raises:
            WorkerDied: at once.
            RerollError: the publication took longer than the timeout.
            PluginError: the mode says it is done, and an engine serves something else.
            Exception: what the second attempt raised; a note says what the first did.
        """
        clock = asyncio.get_running_loop().time
        start = clock()
        in_flight = sum(self.router.in_flight(engine) for engine in self.engines)
        async with self._turn:
            report = await self._publish(version)
        return replace(report, seconds=clock() - start, in_flight=in_flight)

    async def readmit(self, engine: Engine, patience: Patience = nullcontext) -> int:
        """Loads the current weights into an engine that was lost and is back, checks it, and routes to it again; gives
        their version.

        The trainer may be in the middle of a step, or begin one: the version is the one that it has both before and
        after the weights were carried.

        Args:
            patience: for the loading; the end of a publication or of a step may be waited for as long as it takes.

        Raises:
            EngineUnavailable: it was lost again.
            RerollError: it could not be loaded.
        """
        async with self._turn:
            for _ in range(LOADS):
                version = await self.source.completed_steps()
                differ: WeightsDiffer | None = None
                async with patience():
                    try:
                        # In a task of its own, for the reason that a publication's attempt is in one.
                        await asyncio.create_task(self._load(engine, version))
                    except WeightsDiffer as error:
                        differ = error
                if await self.source.completed_steps() == version:
                    if differ is not None:
                        raise differ
                    self.fleet.restore(engine)
                    return version
        raise RerollError(f"the trainer's version changed during each of {LOADS} loads of engine {engine.address!r}")

    async def _load(self, engine: Engine, version: int) -> None:
        try:
            await self.transport.begin(self.source, version)
            await self.transport.stage(engine)
            await self.transport.commit(engine, version)
        except BaseException as error:
            await self._finish_after(error)
            raise
        await uninterrupted(self._finish())
        await engine.flush_cache()
        served = await engine.weight_version()
        if served != version:
            raise EngineError(f"engine {engine.address!r} was loaded with version {version} and serves {served}")
        if self.check_equal:
            others: dict[int, int | None] = {}
            await self.fleet.note_versions(others)
            same = [number for number in sorted(set(others) - self.fleet.doubtful) if others[number] == version]
            await check_equal([engine, *(self.engines[number] for number in same[:1])], self.source)

    def lose(self, engine: Engine, reason: EngineUnavailable) -> None:
        """The engine has ended: nothing is routed to it, and no publication waits for it, before it is readmitted."""
        self.fleet.lose(engine, reason)

    def _interrupt(self, engine: Engine, reason: EngineUnavailable) -> None:
        """What is under way may wait for the engine, or for groups that can only go on when the others have loaded."""
        if self._attempting is not None:
            _cancel_until_done(self._attempting)

    async def _publish(self, version: int) -> PublicationReport:
        if not self.fleet.present():
            return PublicationReport(version=version, mode=self.mode.name)
        start = asyncio.get_running_loop().time()
        before: dict[int, int | None] = {}
        try:
            async with asyncio.timeout(self.timeout) as limit:
                await self.fleet.note_versions(before)
                return await self._until_done(version, before, start + self.timeout)
        except TimeoutError:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            await self.fleet.examine(version, before)
            raise RerollError(
                f"publication mode {self.mode.name!r}: publication of version {version} took longer than "
                f"{self.timeout:g} s; raise serving.publication_timeout, or look into the logs of the workers"
            ) from None
        finally:
            self.fleet.route()
            self.admission.open()

    async def _until_done(self, version: int, before: Mapping[int, int | None], deadline: float) -> PublicationReport:
        """Two attempts, and one more for every engine that is lost in one. Admission stays as a failed one left it, so
        that a barrier needs not drain again."""
        this_task = asyncio.current_task()
        assert this_task is not None
        cancelled = this_task.cancelling()
        attempts, failures = 0, list[Exception]()
        while self.fleet.present():
            attempts += 1
            absent = self.fleet.absent
            try:
                return replace(await self._in_a_task(version, deadline), attempts=attempts)
            except WorkerDied:
                raise
            except (Exception, asyncio.CancelledError) as found:
                if this_task.cancelling() > cancelled:  # also where something told it as an error of its own
                    raise asyncio.CancelledError from found
                if isinstance(found, Exception):
                    error = found
                elif self.fleet.absent > absent:
                    error = next(reason for number, reason in self.fleet.reasons.items() if number not in absent)
                else:
                    raise PluginError(f"publication mode {self.mode.name!r} was cancelled from within") from found
            if failures:
                error.add_note(f"the attempt before had failed: {told(failures[-1])}")
            await self.fleet.examine(version, before)
            if isinstance(error, WeightsDiffer):
                self._doubt(error.engines)
            if lost := self.fleet.absent - absent:
                self._tell_loss(version, lost)
                continue
            failures.append(error)
            if len(failures) == ATTEMPTS:
                raise error
            self._tell(version, error)
        return PublicationReport(version=version, mode=self.mode.name, attempts=attempts)

    async def _in_a_task(self, version: int, deadline: float) -> PublicationReport:
        """In a task of its own: a task group that failed leaves its task counted as cancelled (Python 3.11, 3.12), in
        which no timeout is told from a cancellation any more. And the loss of an engine ends it."""
        self._attempting = asyncio.create_task(self._attempt(version, deadline))
        try:
            return await self._attempting
        finally:
            self._attempting = None

    async def _attempt(self, version: int, deadline: float) -> PublicationReport:
        """Runs the mode and checks that it did what it says."""
        fleet, numbers = self.fleet, self.fleet.present()
        engines = [self.engines[number] for number in numbers]
        context = PublicationContext(
            version=version,
            engines=engines,
            router=self.router,
            admission=Stranded(self.admission, self.router, engines) if fleet.none_routed() else self.admission,
            transport=Attributing(self.transport, fleet),
            source=self.source,
            timeout=deadline - asyncio.get_running_loop().time(),
        )
        try:
            report = await self.mode.publish(context)
        except BaseException as error:
            await self._finish_after(error)
            if isinstance(error, SystemExit):  # would end the process without a word
                raise PluginError(f"publication mode {self.mode.name!r} raised SystemExit: {error}") from error
            if isinstance(error, BaseExceptionGroup):  # of a mode's task group
                raise first_cause(error, WorkerDied) from error
            raise
        await uninterrupted(self._finish())
        name = self.mode.name
        if not isinstance(report, PublicationReport):
            raise PluginError(f"publication mode {name!r} returned {report!r}; it must return a PublicationReport")
        if lost := fleet.absent & set(numbers):  # and the mode took no notice
            raise fleet.reasons[min(lost)]
        served = await together(fleet.go_on(number) for number in sorted(numbers))
        for number, found in zip(sorted(numbers), served, strict=True):
            if found != version:
                raise PluginError(
                    f"publication mode {name!r} says that version {version} is served, but engine "
                    f"{self.engines[number].address!r} serves version {found}; the mode must stage and commit on "
                    "every engine"
                )
        engines = [self.engines[number] for number in sorted(numbers)]
        if self.check_equal or self._check_is_due(version):
            await check_equal(engines, self.source)
        self._published = version
        fleet.doubtful.clear()
        return replace(report, version=version, mode=name, engines=[engine.address for engine in engines])

    def _check_is_due(self, version: int) -> bool:
        interval = self.check_interval
        return interval is not None and version // interval > self._published // interval

    async def _finish(self) -> None:
        await within(ANSWER_SECONDS, self.transport.finish(), f"transport {self.transport.name!r}, asked to finish,")

    async def _finish_after(self, error: BaseException) -> None:
        """Without hiding what failed before."""
        try:
            await uninterrupted(self._finish())
        except Exception as trouble:
            error.add_note(f"the transport could not finish either: {told(trouble)}")

    def _doubt(self, engines: Sequence[Engine]) -> None:
        self.fleet.doubtful |= {number for number in self.fleet.present() if self.engines[number] in engines}
        self.fleet.route()

    def _tell(self, version: int, error: Exception) -> None:
        out = self.fleet.named(self.fleet.doubtful)
        until = f" Until it succeeds, no requests go to {out}." if out else ""
        message = f"publication of version {version} failed and is tried once more: {told(error)}.{until}"
        self.warn(message)

    def _tell_loss(self, version: int, lost: set[int]) -> None:
        there = self.fleet.named(self.fleet.present())
        rest = f"with {there}" if there else "without any engine: it is loaded into the first one that is back"
        self.warn(f"engine {self.fleet.named(lost)} was lost while version {version} was published; it goes on {rest}")


def _cancel_until_done(task: asyncio.Task[Any]) -> None:
    """What it does to clean up may wait for the lost engine as well."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, _cancel_until_done, task)
