"""Recovery: engines that are lost are started again, loaded and only then used, or the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from reroll.api import Engine, EngineError, EngineUnavailable, PluginError, WorkerDied
from reroll.publication.fleet import Fleet, told
from reroll.publication.publisher import Patience
from reroll.serving.router import LeastOutstandingTokensRouter

T = TypeVar("T")
U = TypeVar("U")

FIRST_PAUSE = 1.0
"""Seconds before an engine's second restart in a row; doubled with each further one."""


class Readmitting(Protocol):
    """What knows which weights an engine must serve: a publisher, or what stands for one where none change.

    Attributes:
        timeout: seconds that loading an engine may take.
    """

    fleet: Fleet
    timeout: float

    @property
    def engines(self) -> Sequence[Engine]: ...

    def lose(self, engine: Engine, reason: EngineUnavailable) -> None:
        """The engine has ended: nothing is routed to it before it is readmitted."""

    async def readmit(self, engine: Engine, patience: Patience = ...) -> int:
        """Has an engine that was started again serve the current weights, and routes to it; gives their version."""


class Recovery:
    """Watches over the engines of a run.

    An engine that is lost leaves routing at once: the engine itself says so, or a request or a publication comes upon
    it. Then it is started again and readmitted by the publisher, which knows what it must serve. One that cannot be is
    given up; the run goes on with the others, and ends where none is left or the engine is not one that can be started
    again.

    Args:
        most: restarts of one engine in a run.
        timeout: seconds that the restarts of one recovery may take together. Loading may take what a publication may;
            the end of a step or of a publication, before which an engine cannot be loaded, is not counted.
        share_devices: engines take turns with the trainer; one that is lost ends the run.
        warn: called with what the user should know.

    Attributes:
        restarts: of all engines.
    """

    def __init__(
        self,
        publisher: Readmitting,
        router: LeastOutstandingTokensRouter,
        *,
        most: int,
        timeout: float,
        warn: Callable[[str], None],
        share_devices: bool = False,
    ) -> None:
        self.restarts = 0
        self._share_devices = share_devices
        self._publisher = publisher
        self._most = most
        self._timeout = timeout
        self._warn = warn
        self._states = [_State(engine) for engine in publisher.engines]
        self._tasks: list[asyncio.Task[None]] = []
        router.on_loss = publisher.lose
        publisher.fleet.on_loss.append(self._lost)
        publisher.fleet.on_return.append(self._back)

    @property
    def absent_seconds(self) -> float:
        """That engines were lost for until now, summed over engines."""
        return sum(state.absent_seconds for state in self._states)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Engines are watched from here on, by tasks of that group, which ends with an engine that ends the run."""
        self._tasks = [tasks.create_task(self._watch(state)) for state in self._states]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _lost(self, engine: Engine, reason: EngineUnavailable) -> None:
        self._state(engine).lost(reason)

    def _back(self, engine: Engine) -> None:
        self._state(engine).back()

    def _state(self, engine: Engine) -> _State:
        return next(state for state in self._states if state.engine is engine)

    async def _watch(self, state: _State) -> None:
        while True:
            await self._loss(state)
            if not await self._recovers(state):
                return

    async def _loss(self, state: _State) -> None:
        """Until the engine is lost, by its own account or another one's."""
        own, _ = await _first_of(state.engine.lost(), state.told.wait())
        if own is not None:
            self._publisher.lose(state.engine, own.result())

    async def _readmit(self, state: _State) -> int:
        """Loading an engine that is lost again may hang. It may also wait for the trainer again and again, whose steps
        take as long as they take: what a publication may, it may."""
        loading = self._publisher.readmit(
            state.engine, _Patience(self._publisher.timeout, "serving.publication_timeout")
        )
        own, loaded = await _first_of(state.engine.lost(), loading)
        if loaded is None:
            assert own is not None
            raise own.result()
        return loaded.result()

    async def _recovers(self, state: _State) -> bool:
        """Whether it is in use again; EngineError if the run cannot go on."""
        reason, name = state.reason, state.engine.address
        assert reason is not None
        if not state.engine.recoverable:
            raise EngineError(f"engine {name!r} was lost and cannot be started again: {reason}") from reason
        if self._share_devices:
            raise EngineError(
                f"engine {name!r} was lost, and is not started again: the trainer may be using its devices "
                f"(placement.colocate): {reason}"
            ) from reason
        self._warn(
            f"engine {name} was lost: {reason}. It has {self._timeout:g} s to be back (serving.recovery_timeout); "
            f"{self._rest()}"
        )
        patience = _Patience(self._timeout, "serving.recovery_timeout")
        last: Exception = reason
        for again in range(self._most - state.restarts):
            state.restarts += 1
            self.restarts += 1
            try:
                async with patience():
                    await asyncio.sleep(FIRST_PAUSE * 2 ** (again - 1) if again else 0)
                    await state.engine.recover()
                version = await self._readmit(state)
            except (WorkerDied, PluginError):
                raise
            except Exception as error:
                last = error
                if patience.left <= 0:
                    break
                self._warn(f"restart {state.restarts} of engine {name} failed: {told(error)}")
            else:
                self._warn(
                    f"engine {state.engine.address} is back after {state.last_seconds:.1f} s, with weights of version "
                    f"{version}"
                )
                return True
        await self._give_up(state, last)
        return False

    async def _give_up(self, state: _State, last: Exception) -> None:
        state.given_up = True
        text = (
            f"engine {state.engine.address!r} was lost and is not back after {state.restarts} tries "
            f"(serving.engine_restarts = {self._most}, serving.recovery_timeout = {self._timeout:g}); "
            f"it was lost because: {state.reason}; at last: {told(last)}"
        )
        if all(state.given_up for state in self._states):
            raise EngineError(f"{text}; no engine is left") from last
        self._warn(f"{text}. The run goes on without it; {self._rest()}")
        with suppress(Exception):  # it may be past all answers
            await state.engine.close()

    def _rest(self) -> str:
        there = self._publisher.fleet.named(self._publisher.fleet.present())
        return f"requests go to {there}" if there else "requests wait"


class _State:
    """One engine, as recovery sees it.

    Attributes:
        told: set while it is lost.
        last_seconds: that it was lost for, the last time.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.restarts = 0
        self.given_up = False
        self.told = asyncio.Event()
        self.reason: EngineUnavailable | None = None
        self.last_seconds = 0.0
        self._since: float | None = None
        self._before = 0.0

    @property
    def absent_seconds(self) -> float:
        return self._before + (0.0 if self._since is None else _now() - self._since)

    def lost(self, reason: EngineUnavailable) -> None:
        self.reason, self._since = reason, _now()
        self.told.set()

    def back(self) -> None:
        total = self.absent_seconds
        self.last_seconds, self._before, self._since, self.reason = total - self._before, total, None, None
        self.told.clear()


class _Patience:
    """A time that is shared by several pieces of work."""

    def __init__(self, seconds: float, key: str) -> None:
        self.left = seconds
        self._seconds = seconds
        self._key = key

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        start = _now()
        try:
            async with asyncio.timeout(self.left) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            raise EngineError(f"it took longer than {self._seconds:g} s; raise {self._key}") from None
        finally:
            self.left -= _now() - start


async def _first_of(
    first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]
) -> tuple[asyncio.Task[T] | None, asyncio.Task[U] | None]:
    """What was done first, or both; None for what was not done, and has been cancelled."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done = [task.done() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks[0] if done[0] else None, tasks[1] if done[1] else None


def _now() -> float:
    return asyncio.get_running_loop().time()
