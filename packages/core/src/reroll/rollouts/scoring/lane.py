"""One scoring process, and the calls that were sent to it and have no answer yet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reroll.api import Task, Trace, Verdict, WorkerSpec
from reroll.rollouts.scoring.guard import reap
from reroll.rollouts.scoring.leftovers import VARIABLE, end_leftovers
from reroll.rollouts.scoring.progress import ProgressPage
from reroll.rollouts.scoring.worker import Call, Outcome, VerifierSpec
from reroll.workers.process import ProcessWorker, describe_exit, last_lines

_ending = ThreadPoolExecutor(2, thread_name_prefix="scoring-ending")
"""Not the event loop's own threads: calls of verifiers may hold all of those, and what they left must end still."""

TARGET = "reroll.rollouts.scoring.worker:ScoringWorker"

Replies = asyncio.Future[list[Outcome]]

# One process is one core's worth of work: libraries that start a thread a core would only get in the
# way of the other workers, and reserve memory for each.
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Judged(NamedTuple):
    """What a call to a process gave: one verdict a trace, and the seconds that the verifier itself took."""

    verdicts: list[Verdict]
    seconds: float


@dataclass(eq=False)
class Job:
    """A call of a verifier that somebody waits for."""

    verifier: str
    task: Task
    traces: Sequence[Trace]
    group: bool
    future: asyncio.Future[Judged]
    losses: int = 0
    """Workers that were lost with the call in their queue, without any call to blame."""

    def resolve(self, verdicts: list[Verdict], seconds: float) -> None:
        if not self.future.done():
            self.future.set_result(Judged(verdicts, seconds))

    def resolve_failed(self, verdict: Verdict, seconds: float) -> None:
        self.resolve([verdict] * len(self.traces), seconds)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Lane:
    """Sends calls to one worker. It is used until the worker is dead, and then never again."""

    def __init__(self, worker: ProcessWorker, page: ProgressPage, mark: str) -> None:
        self.worker = worker
        self._mark = mark
        self.page = page
        self.calls: dict[int, Job] = {}
        self.gone = False
        self.stalled: int | None = None
        """Number of the slow call that the others were taken back from."""
        self.heard = time.monotonic()
        """When the worker last answered, or last had nothing to do."""
        self._numbers = itertools.count(1)
        self._taken_back: set[int] = set()
        self._sending: set[Replies] = set()

    @classmethod
    async def start(
        cls,
        name: str,
        verifiers: Mapping[str, VerifierSpec],
        memory_bytes: int,
        logs: Path | None,
        blank: Set[str] = frozenset(),
    ) -> Lane:
        page, path = ProgressPage.create()
        try:
            arguments = {"verifiers": dict(verifiers), "page": str(path), "memory_limit_bytes": memory_bytes}
            mark = secrets.token_hex(16)
            environment = {key: value for key, value in THREADS.items() if key not in os.environ}
            environment |= {key: "" for key in blank if key in os.environ} | {VARIABLE: mark}
            worker = await ProcessWorker.start(
                WorkerSpec(name, TARGET, arguments, environment, logs / f"{name}.log" if logs else None)
            )
        except BaseException:
            page.close()
            raise
        finally:
            path.unlink(missing_ok=True)
        return cls(worker, page, mark)

    @property
    def waiting(self) -> int:
        """Calls that the worker has, or is at."""
        return len(self.calls) - len(self._taken_back)

    def room(self, window: int) -> int:
        """Calls that it may be sent; none beside one that may have cost a worker."""
        suspect = any(job.losses for job in self.calls.values())
        return 0 if self.gone or suspect or self.stalled is not None else window - self.waiting

    def send(self, jobs: Sequence[Job], answered: Callable[[Lane, dict[int, Job], Replies], None]) -> None:
        """Sends calls that are answered together."""
        if not self.calls:
            self.heard = time.monotonic()
        numbered, calls = {}, []
        for job in jobs:
            # Each pickled alone: what cannot be sent fails one call, and a verifier that changes what it is given
            # changes no other call's.
            try:
                payload = pickle.dumps((job.task, job.traces), protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                why = f"the response cannot be sent to a process: {type(error).__name__}: {error}"
                job.resolve_failed(Verdict(None, state="service_error", detail=why), 0.0)
                continue
            number = next(self._numbers)
            numbered[number] = job
            calls.append(Call(number, job.verifier, job.group, payload))
        if not calls:
            return
        self.calls |= numbered
        sending = self.worker.call("judge", calls)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        sending.add_done_callback(lambda done: answered(self, numbered, done))

    def answered(self, numbers: Iterable[int]) -> set[int]:
        """A reply came: the calls are over, or were skipped. Gives those that had been taken back."""
        taken_back = self._taken_back.intersection(numbers)
        for number in numbers:
            del self.calls[number]
            self._taken_back.discard(number)
            if self.stalled == number:
                self.stalled = None
        self.heard = time.monotonic()
        return taken_back

    def take_back(self, running: int) -> list[Job]:
        """The calls behind the running one; the worker will skip them when it comes to them."""
        behind = [number for number in self.calls if number > running and number not in self._taken_back]
        self._taken_back.update(behind)
        self.stalled = running
        self.page.revoke(max(self.calls))
        return [self.calls[number] for number in behind]

    def unanswered(self, but: Job | None) -> list[Job]:
        """The calls to judge elsewhere after the worker's end; one that it did not get to say the result of
        is among them."""
        return [job for number, job in self.calls.items() if number not in self._taken_back and job is not but]

    def exit_words(self) -> str | None:
        """How the process ended and what it said last; None while it runs."""
        code = self.worker.process.poll()
        if code is None:
            return None
        words = last_lines(self.worker.log)
        how = f"{describe_exit(code)}{self.worker.given_up}"
        return f"worker {self.worker.name!r} {how}" + (f"; its last words:\n{words}" if words else "")

    def kill(self) -> None:
        """Ends the worker and what it started. Its process group has its number."""
        if self.gone:
            return  # by now the number may be another's
        self.gone = True
        with contextlib.suppress(OSError):  # nothing is left of it
            os.killpg(self.worker.process.pid, signal.SIGKILL)
        self.worker.kill()

    def end_leftovers(self) -> None:
        end_leftovers(self._mark)

    async def end(self) -> None:
        self.kill()
        await self.worker.close(timeout=0)
        await asyncio.get_running_loop().run_in_executor(_ending, self.end_leftovers)
        reap(self.worker.process.pid)
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        self.page.close()
