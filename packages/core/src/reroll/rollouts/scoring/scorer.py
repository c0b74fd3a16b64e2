"""Asks every verifier that a task names, each where its kind of work belongs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, cast

from reroll.api import PluginError, Task, Trace, Verdict, Verifier
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.contract import ContractViolation, checked, failed, kind_of, who
from reroll.rollouts.scoring.lane import Judged
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec

ABANDONED_SECONDS = 1.0
"""That `close` waits for asynchronous calls which did not end when they were cancelled."""


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


class Scorer:
    """Verifiers by the name that tasks call them. Closing it closes its pool.

    A verifier that fails gives a state and the run goes on; one that breaks its contract raises
    PluginError, since no number can be made of what it gave.
    """

    def __init__(
        self,
        verifiers: Mapping[str, SelectedVerifier],
        config: ScoringConfig | None = None,
        logs: Path | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        config = config or ScoringConfig()
        self.verifiers = dict(verifiers)
        self.deadline_seconds = config.deadline_seconds
        self._kinds = {name: kind_of(type(item.verifier), item.distribution) for name, item in verifiers.items()}
        self._slots = {
            name: asyncio.Semaphore(item.verifier.concurrency)
            for name, item in verifiers.items()
            if self._kinds[name] == "async"
        }
        for name in self._slots:
            verifiers[name].verifier.warm_up()
        self._abandoned: set[asyncio.Task[Verdict]] = set()
        self.pool = ScoringPool(
            {name: item.spec for name, item in verifiers.items() if self._kinds[name] != "async"},
            config.workers,
            config.deadline_seconds,
            memory_limit_mb=config.memory_limit_mb,
            logs=logs,
            warn=warn,
        )

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
        except BaseException:
            for call in asking:
                call.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            raise
        return [
            {name: calls[position].verdicts[0] for name, calls in zip(names, judged, strict=True)}
            for position in range(len(traces))
        ]

    async def judge(self, name: str, task: Task, traces: Sequence[Trace]) -> list[Judged]:
        """What one verifier says of each trace, with the seconds of the call that said it."""
        kind = self._kinds.get(name)
        if kind is None:
            raise PluginError(
                f"task {task.key} has a target for the verifier {name!r}, which is not among those of the run: "
                f"{', '.join(sorted(self.verifiers)) or 'none'}"
            )
        if kind == "group":
            together = await self.pool.judge(name, task, traces, group=True)
            return [Judged([verdict], together.seconds) for verdict in together.verdicts]
        if kind == "async":
            return list(await asyncio.gather(*(self._wait_for(name, task, trace) for trace in traces)))
        return list(await asyncio.gather(*(self.pool.judge(name, task, [trace]) for trace in traces)))

    async def _wait_for(self, name: str, task: Task, trace: Trace) -> Judged:
        """One call on the event loop, its deadline counted from when it gets a slot."""
        item = self.verifiers[name]
        async with self._slots[name]:
            begun = time.monotonic()
            call = asyncio.ensure_future(_ask(item.verifier, task, trace))
            try:
                # Not `wait_for`, which would also wait for a call that does not let itself be cancelled.
                await asyncio.wait([call], timeout=self.deadline_seconds)
            finally:
                if not call.done():
                    self._abandon(call)
            seconds = time.monotonic() - begun
        if not call.done():
            detail = f"over the deadline of {self.deadline_seconds:g} s"
            return Judged([Verdict(None, state="timeout", detail=detail)], seconds)
        try:
            return Judged([call.result()], seconds)
        except ContractViolation as error:
            raise PluginError(f"{who(name, item.distribution)} broke its contract: {error}") from None
        except (Exception, asyncio.CancelledError) as error:
            return Judged(failed(error, 1), seconds)

    def _abandon(self, call: asyncio.Task[Verdict]) -> None:
        call.cancel()
        self._abandoned.add(call)
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Task[Verdict]) -> None:
        self._abandoned.discard(call)
        if not call.cancelled():
            call.exception()  # seen, or the event loop would complain of it

    async def close(self) -> None:
        """Ends the pool's processes and the asynchronous calls that are still out."""
        await self.pool.close()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=ABANDONED_SECONDS)


async def _ask(verifier: Verifier, task: Task, trace: Trace) -> Verdict:
    return checked(await cast(Awaitable[Verdict], verifier.score(task, trace)))
