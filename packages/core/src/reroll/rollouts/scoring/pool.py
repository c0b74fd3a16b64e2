"""Processes that ask verifiers and can be killed.

A call's deadline runs from the start of its work in a process. A call that passes it, or that brings its
process down, costs that process; the calls behind it are judged by another one, each alone where it is not known
which of them did it. Those behind a call that is merely slow are as well, so that one answer holds up no others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reroll.api import PluginError, RerollError, ScorerClosed, Task, Trace, Verdict, WorkerDied
from reroll.rollouts.scoring.contract import unfailing, who
from reroll.rollouts.scoring.lane import Job, Judged, Lane, Replies
from reroll.rollouts.scoring.progress import IDLE, WORKING
from reroll.rollouts.scoring.worker import Outcome, VerifierSpec

ATTEMPTS = 3
"""Processes that may be lost to starting, to one verifier's import, or with one call in their queue."""
STALL_SECONDS = 0.2
"""A call that runs for so long loses the calls behind it to other workers."""
QUEUED_SECONDS = 0.05
"""Work that a worker is given at once: enough to hide the way to it, and little to take back."""
TOGETHER_SECONDS = 0.01
"""Work that travels, and is answered, together: slow calls each go alone, so that none waits for another's answer."""
LOST_SECONDS = 60.0
"""A worker with calls that neither works nor answers for so long is given up."""


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """For what the event loop calls: a fault in it would be logged and nothing else, and calls would wait for ever."""

    @wraps(method)
    def call(pool: ScoringPool, *arguments: Any) -> None:
        try:
            method(pool, *arguments)
        except Exception as error:
            pool._break(_fault(error))

    return call


def _fault(error: BaseException) -> RerollError:
    fault = RerollError(f"the scoring pool failed: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


class ScoringPool:
    """`verifiers` by name, asked in `workers` processes. Starts with the first call; `close` ends it.

    Args:
        deadline_seconds: of one call, from the start of its work.
        memory_limit_mb: that one process may allocate; 0 for no limit.
        load_seconds: in which a verifier must have been imported and made.
        window: most calls that one worker has at a time; the rest wait here.
        blank: environment variables that are empty in the workers.
        logs: folder for the workers' output, what verifiers print included; None keeps none.
        warn: hears of every process that ends by itself.
    """

    def __init__(
        self,
        verifiers: Mapping[str, VerifierSpec],
        workers: int = 2,
        deadline_seconds: float = 10.0,
        *,
        memory_limit_mb: int = 2048,
        load_seconds: float = 120.0,
        window: int = 64,
        blank: Set[str] = frozenset(),
        logs: Path | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.verifiers = dict(verifiers)
        self.workers = workers
        self.deadline_seconds = deadline_seconds
        self.load_seconds = load_seconds
        self.window = window
        self._memory_bytes = memory_limit_mb << 20
        self._blank = blank
        self._logs = logs
        self._warn = unfailing(warn)
        self._pending: deque[Job] = deque()
        self._lanes: set[Lane] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._mean_seconds = QUEUED_SECONDS / 8
        self._load_deaths: Counter[str] = Counter()
        self._unloadable: dict[str, PluginError] = {}
        self._broken: RerollError | None = None
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [lane.worker.process.pid for lane in self._lanes]

    def judge(self, verifier: str, task: Task, traces: Sequence[Trace], group: bool = False) -> asyncio.Future[Judged]:
        """One call: `score` for the one trace, or `score_group` for all of them.

        PluginError if the verifier broke its contract or cannot be loaded. Everything else that goes
        wrong is a verdict's state.
        """
        if self._closed.is_set():
            raise ScorerClosed("the scoring pool is closed; make another one")
        if verifier not in self.verifiers:
            raise PluginError(f"no verifier {verifier!r} in the scoring pool; there are {sorted(self.verifiers)}")
        if problem := self._broken or self._unloadable.get(verifier):
            raise problem
        self.begin()
        job = Job(verifier, task, traces, group, asyncio.get_running_loop().create_future())
        self._pending.append(job)
        # What is asked in one turn of the event loop, such as a group's responses, travels together.
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_soon(self._dispatch)
        return job.future

    def begin(self) -> None:
        """Starts the processes, where they are not wanted only with the first call."""
        if self._watching is None and self.verifiers:
            self._watching = asyncio.create_task(self._watch(), name="watch scoring")
            self._watching.add_done_callback(self._watched)
            for index in range(self.workers):
                self._spawn(self._open_lane(f"scoring-{index}"))

    async def close(self) -> None:
        """Ends every process; calls that still wait are cancelled."""
        self._closed.set()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        lanes, self._lanes = self._lanes, set()
        jobs = [*self._pending, *(job for lane in lanes for job in lane.calls.values())]
        self._pending.clear()
        for lane in lanes:
            lane.kill()
        for job in jobs:
            job.future.cancel()
        await asyncio.gather(*(lane.end() for lane in lanes), *self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """Ends every process and what it started, without the event loop; for where that has failed."""
        for lane in self._lanes:
            lane.kill()
            lane.end_leftovers()

    # Sending

    @_guarded
    def _dispatch(self) -> None:
        window = max(2, min(self.window, int(QUEUED_SECONDS / self._mean_seconds)))
        while self._lanes and (first := self._first()) is not None:
            lane = max(self._lanes, key=lambda lane: lane.room(window))
            if lane.room(window) <= 0 or (first.losses and lane.calls):
                return  # what may have cost a worker gets one of its own
            share = -(-len(self._pending) // len(self._lanes))
            jobs = self._next(min(lane.room(window), share, int(TOGETHER_SECONDS / self._mean_seconds)))
            lane.send(jobs, self._answered)

    def _first(self) -> Job | None:
        """The first pending call that somebody still waits for."""
        while self._pending and self._pending[0].future.done():
            self._pending.popleft()
        return self._pending[0] if self._pending else None

    def _next(self, count: int) -> list[Job]:
        """Up to `count` pending calls, at least the first; one that may have cost a worker goes alone."""
        jobs: list[Job] = []
        while len(jobs) < max(count, 1) and (job := self._first()) is not None:
            if jobs and job.losses:
                break
            jobs.append(self._pending.popleft())
            if job.losses:
                break
        return jobs

    @_guarded
    def _answered(self, lane: Lane, numbered: Mapping[int, Job], call: Replies) -> None:
        error = None if call.cancelled() else call.exception()
        if lane.gone or call.cancelled() or isinstance(error, WorkerDied):
            return  # whoever buries the lane settles its calls
        elsewhere = lane.answered(numbered)
        if error is not None:
            for job in numbered.values():
                job.fail(error)
        else:
            for (number, job), outcome in zip(numbered.items(), call.result(), strict=True):
                if not outcome.skipped:
                    self._settle(job, outcome)
                elif number not in elsewhere:
                    self._pending.append(job)
            if call.result()[-1].worn:
                self._replace(lane, lane.unanswered(but=None))
        self._dispatch()

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if outcome.unloadable:
            self._give_up_loading(job, outcome.unloadable)
        elif outcome.violation:
            name = who(job.verifier, self.verifiers[job.verifier].distribution)
            job.fail(PluginError(f"{name} broke its contract: {outcome.violation}"))
        elif outcome.verdicts is None:
            job.resolve_failed(Verdict(None, state="service_error", detail=outcome.unreadable), 0.0)
        else:
            self._load_deaths.pop(job.verifier, None)
            self._mean_seconds += 0.05 * (max(outcome.seconds, 1e-5) - self._mean_seconds)
            job.resolve(outcome.verdicts, outcome.seconds)

    # Watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(0.05, self.deadline_seconds / 10))
            for lane in list(self._lanes):
                self._inspect(lane)

    def _watched(self, watching: asyncio.Task[None]) -> None:
        """Without its watcher the pool would wait for ever: a fault in it ends every call."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self._break(_fault(error))

    def _inspect(self, lane: Lane) -> None:
        if words := lane.exit_words():
            self._bury(lane, self._culprit(lane), words)
            return
        now, doing = time.monotonic(), lane.page.read()
        job = lane.calls.get(doing.call)
        if doing.phase == IDLE or job is None:
            if lane.calls and now - lane.heard > LOST_SECONDS:
                self._bury(lane, None, f"worker {lane.worker.name!r} did not answer for {LOST_SECONDS:g} s")
            return
        limit = self.deadline_seconds if doing.phase == WORKING else self.load_seconds
        if now - doing.since > limit:
            if doing.phase == WORKING:
                detail = f"over the deadline of {limit:g} s"
                job.resolve_failed(Verdict(None, state="timeout", detail=detail), now - doing.since)
            else:
                self._give_up_loading(job, f"it took longer than {limit:g} s")
            self._bury(lane, job, "")
        elif now - doing.since > STALL_SECONDS and lane.stalled is None:
            self._pending.extendleft(reversed(lane.take_back(doing.call)))
            self._dispatch()

    @_guarded
    def _mourn(self, lane: Lane, died: WorkerDied) -> None:
        if not lane.gone:
            self._bury(lane, self._culprit(lane), str(died))

    def _culprit(self, lane: Lane) -> Job | None:
        """The call that a worker was at when it died. One that lost its connection ends by itself, with code 0, and any
        of its calls may have closed that."""
        doing = lane.page.read()
        if doing.phase == IDLE or (lane.worker.process.poll() == 0 and len(lane.calls) > 1):
            return None
        return lane.calls.get(doing.call)

    def _bury(self, lane: Lane, culprit: Job | None, words: str) -> None:
        """Blames the call that a worker died of, and replaces the worker."""
        if words:
            self._warn(f"{words.splitlines()[0].removesuffix('; its last words:')}; another takes its place")
        again = lane.unanswered(but=culprit)
        if culprit is None:
            for job in again:
                job.losses += 1
                if job.losses >= ATTEMPTS:
                    job.resolve_failed(_died(words), 0.0)
        elif not culprit.future.done():
            doing = lane.page.read()
            if doing.phase == WORKING:
                culprit.resolve_failed(_died(words), time.monotonic() - doing.since)
            else:
                again.insert(0, culprit)
                self._load_deaths[culprit.verifier] += 1
                if self._load_deaths[culprit.verifier] >= ATTEMPTS:
                    self._give_up_loading(culprit, words)
        self._replace(lane, again)

    def _replace(self, lane: Lane, again: list[Job]) -> None:
        """Ends a lane, starts its successor, and has the calls judged that it leaves."""
        lane.kill()
        self._lanes.discard(lane)
        self._pending.extendleft(reversed([job for job in again if not job.future.done()]))
        self._spawn(lane.end())
        self._spawn(self._open_lane(lane.worker.name))
        self._dispatch()

    def _give_up_loading(self, job: Job, why: str) -> None:
        distribution = self.verifiers[job.verifier].distribution
        error = PluginError(
            f"{who(job.verifier, distribution)} cannot be loaded in a worker: {why}; "
            f"install or update {distribution} and what it needs"
        )
        self._unloadable[job.verifier] = error
        job.fail(error)
        for other in self._pending:
            if other.verifier == job.verifier:
                other.fail(error)

    # Starting

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(_fault(error))

    async def _open_lane(self, name: str) -> None:
        """Starts a worker; after some failures in a row, and with no other worker left, the pool is broken."""
        failures = 0
        while not self._closed.is_set():
            try:
                lane = await Lane.start(name, self.verifiers, self._memory_bytes, self._logs, self._blank)
            except Exception as error:
                failures += 1
                if failures >= ATTEMPTS and not self._lanes:
                    self._break(WorkerDied("scoring", f"could not be started: {error}"))
                    return
                await asyncio.sleep(min(5.0, 0.1 * 2**failures))
                continue
            if self._closed.is_set():
                await lane.end()
                return
            self._lanes.add(lane)
            lane.worker.on_death = partial(self._mourn, lane)
            self._dispatch()
            return

    def _break(self, error: RerollError) -> None:
        """Ends every call, those that a worker has included: nobody would watch over them."""
        self._broken = error
        jobs = [*self._pending, *(job for lane in self._lanes for job in lane.calls.values())]
        self._pending.clear()
        for job in jobs:
            job.fail(error)


def _died(words: str) -> Verdict:
    return Verdict(None, state="service_error", detail=" | ".join(words.splitlines()))
