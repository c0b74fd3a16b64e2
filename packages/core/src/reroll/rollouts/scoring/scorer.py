"""Asks every verifier that a task names, each where its kind of work belongs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, cast

from reroll.api import PluginError, ScorerClosed, Task, Trace, Verdict, Verifier
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.contract import (
    ContractViolation,
    check_importable,
    checked,
    checked_concurrency,
    checked_deadline,
    described,
    failed,
    kind_of,
    unfailing,
    who,
)
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec

ABANDONED_SECONDS = 1.0
"""That `close` waits for asynchronous calls which did not end when they were cancelled."""
CLOSING_SECONDS = 5.0
"""That the `close` of one verifier may take."""


class SelectedVerifier(NamedTuple):
    """A configured verifier, and the distribution that errors name."""

    verifier: Verifier
    distribution: str

    @property
    def spec(self) -> VerifierSpec:
        cls = type(self.verifier)
        return VerifierSpec(
            f"{cls.__module__}:{cls.__qualname__}", self.verifier.config.model_dump(), self.distribution
        )


class TimedVerdict(NamedTuple):
    """A verdict, and the seconds of the call that gave it."""

    verdict: Verdict
    seconds: float


def selected(verifier: SelectedVerifier | Verifier) -> SelectedVerifier:
    """The verifier with what errors name beside it; of one that comes alone, its top-level package."""
    if isinstance(verifier, Verifier):
        return SelectedVerifier(verifier, type(verifier).__module__.partition(".")[0])
    return verifier


class Scorer:
    """Verifiers by the name that tasks call them. Closing it closes its pool.

    A verifier that fails gives a state and the run goes on; one that breaks its contract raises
    PluginError, since no number can be made of what it gave.

    A verifier may be given as it is, or with the distribution that errors name.

    Any number of calls may wait. Each costs what its caller holds anyhow, task and trace, and 2 to 4 KB: calls for
    processes are written out as bytes when they are sent, a bounded number at a time (`ScoringPool`).
    """

    def __init__(
        self,
        verifiers: Mapping[str, SelectedVerifier | Verifier],
        config: ScoringConfig | None = None,
        logs: Path | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        config = config or ScoringConfig()
        self.verifiers = {name: selected(item) for name, item in verifiers.items()}
        self._kinds = {name: kind_of(type(item.verifier), item.distribution) for name, item in self.verifiers.items()}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._deadlines: dict[str, float] = {}
        for name, (verifier, distribution) in self.verifiers.items():
            if self._kinds[name] == "async":
                self._slots[name] = asyncio.Semaphore(checked_concurrency(verifier.concurrency, verifier, distribution))
                own = checked_deadline(verifier.deadline_seconds, verifier, distribution)
                self._deadlines[name] = config.deadline_seconds if own is None else own
            else:
                check_importable(type(verifier), distribution)
        for name in self._slots:
            _warm_up(self.verifiers[name])
        self._warn = unfailing(warn)
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[Verdict]] = set()
        """Of asynchronous verifiers: those that are waited for, and those that did not end at their deadline."""
        self.pool = ScoringPool(
            {name: item.spec for name, item in self.verifiers.items() if self._kinds[name] != "async"},
            config.workers,
            config.deadline_seconds,
            memory_limit_mb=config.memory_limit_mb,
            blank=self._keys(),
            logs=logs,
            warn=warn,
        )

    def _keys(self) -> frozenset[str]:
        """Variables with the keys of services that only asynchronous verifiers ask: nothing in a process of the pool
        has a use for them."""
        named: dict[bool, set[str]] = {True: set(), False: set()}
        for name, item in self.verifiers.items():
            named[self._kinds[name] == "async"].add(str(getattr(item.verifier.config, "api_key_env", None) or ""))
        return frozenset(named[True] - named[False])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def score(self, task: Task, trace: Trace) -> dict[str, Verdict]:
        """What every verifier of the task says of one trace; a group verifier sees a group of one."""
        return (await self.score_group(task, [trace]))[0]

    async def score_group(
        self, task: Task, traces: Sequence[Trace], keys: Mapping[str, str] | None = None
    ) -> list[dict[str, Verdict]]:
        """Verifier name → verdict for each trace, in order. The first contract that is broken is raised.

        Args:
            keys: name in the task's targets → name of the verifier here, where they differ.
        """
        if not traces:
            return []
        names = list(task.targets)
        asking = [asyncio.ensure_future(self.judge((keys or {}).get(name, name), task, traces)) for name in names]
        try:
            judged = await asyncio.gather(*asking)
        except (Exception, asyncio.CancelledError):
            for call in asking:
                call.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            raise
        return [
            {name: calls[position].verdict for name, calls in zip(names, judged, strict=True)}
            for position in range(len(traces))
        ]

    async def judge(self, name: str, task: Task, traces: Sequence[Trace]) -> list[TimedVerdict]:
        """What one verifier says of each trace, with the seconds of the call that said it."""
        if self._closed:
            raise ScorerClosed("the scorer is closed; make another one")
        kind = self._kinds.get(name)
        if kind is None:
            raise PluginError(
                f"task {task.key} has a target for the verifier {name!r}, which is not among those of the run: "
                f"{', '.join(sorted(self.verifiers)) or 'none'}"
            )
        if kind == "group":
            together = await self.pool.judge(name, task, traces, group=True)
            return [TimedVerdict(verdict, together.seconds) for verdict in together.verdicts]
        if kind == "async":
            return list(await asyncio.gather(*(self._wait_for(name, task, trace) for trace in traces)))
        alone = await asyncio.gather(*(self.pool.judge(name, task, [trace]) for trace in traces))
        return [TimedVerdict(judged.verdicts[0], judged.seconds) for judged in alone]

    async def _wait_for(self, name: str, task: Task, trace: Trace) -> TimedVerdict:
        """One call on the event loop, its deadline counted from when it gets a slot."""
        item = self.verifiers[name]
        deadline = self._deadlines[name]
        async with self._slots[name]:
            if self._closed:
                raise asyncio.CancelledError
            begun = time.monotonic()
            call = asyncio.ensure_future(_ask(item.verifier, task, trace))
            self._calls.add(call)
            call.add_done_callback(self._forget)
            try:
                # Not `wait_for`, which would also wait for a call that does not let itself be cancelled.
                await asyncio.wait([call], timeout=deadline)
            finally:
                call.cancel()
            seconds = time.monotonic() - begun
        if not call.done():
            return TimedVerdict(Verdict(None, state="timeout", detail=f"over the deadline of {deadline:g} s"), seconds)
        try:
            return TimedVerdict(call.result(), seconds)
        except ContractViolation as error:
            raise PluginError(f"{who(name, item.distribution)} broke its contract: {error}") from None
        except (Exception, asyncio.CancelledError) as error:
            if self._closed:
                raise asyncio.CancelledError from None
            return TimedVerdict(failed(error, 1)[0], seconds)

    def _forget(self, call: asyncio.Task[Verdict]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, or the event loop would complain of it

    async def close(self) -> None:
        """Ends the pool's processes and the asynchronous calls that are still out, whose callers are cancelled; then
        closes the asynchronous verifiers. A caller that is cancelled meanwhile, by Ctrl-C most often, hears of it when
        that is done; one that comes later waits for the same end."""
        self._closed = True
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name="end scoring")
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            await asyncio.wait([self._ending])
            raise

    async def _end(self) -> None:
        await self.pool.close()
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=ABANDONED_SECONDS)
        for name in self._slots:
            await self._close_verifier(name)

    async def _close_verifier(self, name: str) -> None:
        """What it does then must not hide how the run ended."""
        item = self.verifiers[name]
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await item.verifier.close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._warn(f"{who(name, item.distribution)} could not be closed: {described(error)}")


async def _ask(verifier: Verifier, task: Task, trace: Trace) -> Verdict:
    try:
        return checked(await cast(Awaitable[Verdict], verifier.score(task, trace)))
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # SystemExit, KeyboardInterrupt: out of a task they would end the event loop
        return failed(error, 1)[0]


def _warm_up(item: SelectedVerifier) -> None:
    try:
        item.verifier.warm_up()
    except (SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's own
        raise PluginError(
            f"{who(item.verifier.name, item.distribution)} cannot be prepared: its `warm_up` raised "
            f"{described(error)}; install or update {item.distribution} and what it needs"
        ) from error
