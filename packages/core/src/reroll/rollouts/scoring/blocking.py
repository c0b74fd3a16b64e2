"""The scorer for callers without an event loop: threads, executors, notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from reroll.api import RerollError, ScorerClosed, Task, Trace, Verdict, Verifier
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.contract import described
from reroll.rollouts.scoring.scorer import ABANDONED_SECONDS, CLOSING_SECONDS, Scorer, SelectedVerifier, TimedVerdict

Given = TypeVar("Given")

INTERRUPTS = 3
"""Ctrl-C so often during `close` gives it up."""
CLOSED_MEANWHILE = "the scorer was closed while a call waited for its verdict"


class BlockingScorer:
    """A `Scorer` on an event loop in a thread of its own. Every method may be called from any thread, and from many
    at once; verdicts and errors are the scorer's.

    `score`, `score_group` and `judge` wait. `submit` does not: its future is one for `concurrent.futures.wait`, or in
    another event loop for `asyncio.wrap_future`, whose cancellation gives the call up. It bounds nothing: whoever
    submits holds task and traces until their verdicts are there.
    """

    def __init__(
        self,
        verifiers: Mapping[str, SelectedVerifier | Verifier],
        config: ScoringConfig | None = None,
        logs: Path | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(thread_name_prefix="scoring-call")
        self._loop.set_default_executor(self._threads)
        self._calls: set[asyncio.Task[Any]] = set()
        self._futures: set[Future[Any]] = set()
        """What somebody may wait for."""
        self._closed = False
        self._over = False
        self._fault: RerollError | None = None
        self._ending: Future[None] | None = None
        # A daemon, so that a scorer which nobody closed keeps no interpreter from its end; the workers notice that.
        self._thread = threading.Thread(target=self._serve, name="scoring", daemon=True)
        self._thread.start()
        try:
            self._scorer = self._run(_make(verifiers, config, logs, warn)).result()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, task: Task, trace: Trace) -> dict[str, Verdict]:
        """What every verifier of the task says of one trace."""
        return self.score_group(task, [trace])[0]

    def score_group(
        self, task: Task, traces: Sequence[Trace], keys: Mapping[str, str] | None = None
    ) -> list[dict[str, Verdict]]:
        """Verifier name → verdict for each trace, in order; see `Scorer.score_group`."""
        self._refuse_own_thread()
        return self._wait(self.submit(task, traces, keys))

    def judge(self, name: str, task: Task, traces: Sequence[Trace]) -> list[TimedVerdict]:
        """What one verifier says of each trace, with the seconds of the call that said it."""
        self._refuse_own_thread()
        return self._wait(self._run(self._scorer.judge(name, task, traces)))

    def submit(
        self, task: Task, traces: Sequence[Trace], keys: Mapping[str, str] | None = None
    ) -> Future[list[dict[str, Verdict]]]:
        """`score_group` as a future."""
        return self._run(self._scorer.score_group(task, traces, keys))

    def close(self) -> None:
        """Ends the pool's processes, closes the verifiers, and ends the thread. Calls that still wait raise
        ScorerClosed. What verifiers do in threads (`asyncio.to_thread`) cannot be ended: after some seconds it is left
        behind, and the interpreter's end waits for it.

        Ctrl-C is raised when that is done, the third one at once; what is left then another `close` ends.
        """
        self._refuse_own_thread()
        interrupts: list[KeyboardInterrupt] = []
        while True:
            try:
                self._close()
                break
            except KeyboardInterrupt as error:
                interrupts.append(error)
                if len(interrupts) == INTERRUPTS:
                    raise
        if interrupts:
            raise interrupts[0]

    def _close(self) -> None:
        """May be interrupted, and called again, anywhere."""
        with self._lock:
            self._closed = True
            if self._ending is None and not self._over:
                self._ending = self._start(self._finish())
            ending = self._ending
        if ending is not None:
            wait([ending])
        self._end()
        if ending is not None and isinstance(error := ending.exception(), Exception):
            raise error

    async def _finish(self) -> None:
        await self._scorer.close()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=ABANDONED_SECONDS)
        # Not `shutdown_default_executor`, which waits without a bound (before Python 3.12).
        self._threads.shutdown(wait=False, cancel_futures=True)
        ending = threading.Thread(target=self._threads.shutdown, name="scoring-end", daemon=True)
        ending.start()
        until = self._loop.time() + CLOSING_SECONDS
        while ending.is_alive() and self._loop.time() < until:
            await asyncio.sleep(0.01)

    def _end(self) -> None:
        with self._lock:
            self._closed = True
        with suppress(RuntimeError):  # another caller has closed it
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        with self._lock:
            if not self._loop.is_closed():
                with suppress(Exception) if self._fault else nullcontext():
                    self._loop.close()

    def _stop(self) -> None:
        self._over = True
        self._loop.stop()

    def _serve(self) -> None:
        """The thread. Foreign code on the loop that wants to end the program, in a task of its own or a callback, ends
        neither program nor loop; whatever else ends the loop, nobody waits for it then."""
        try:
            while not self._over:
                with suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
        except BaseException as error:
            self._fault = RerollError(f"the scorer's event loop failed: {described(error)}; make another scorer")
            self._fault.__cause__ = error
            with suppress(AttributeError):  # it was still being made
                self._scorer.pool.kill()
        finally:
            with self._lock:
                self._over = True
                left = list(self._futures)
            for future in left:  # each leaves the set when it is told
                with suppress(InvalidStateError):
                    future.set_exception(self._fault or ScorerClosed(CLOSED_MEANWHILE))

    def _run(self, work: Coroutine[Any, Any, Given]) -> Future[Given]:
        """Starts it on the loop. Under the lock, so that `close` finds every call that was let in."""
        with self._lock:
            if self._closed:
                work.close()
                raise ScorerClosed("the scorer is closed; make another one")
            if self._over:
                work.close()
                raise self._fault or ScorerClosed(CLOSED_MEANWHILE)
            return self._start(self._noted(work))

    def _start(self, work: Coroutine[Any, Any, Given]) -> Future[Given]:
        """Under the lock, so that the thread leaves no future behind."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    async def _noted(self, work: Coroutine[Any, Any, Given]) -> Given:
        call = asyncio.current_task()
        assert call is not None, "a coroutine runs in a task"
        self._calls.add(call)
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise ScorerClosed(CLOSED_MEANWHILE) from None
            raise
        finally:
            self._calls.discard(call)

    def _wait(self, future: Future[Given]) -> Given:
        try:
            return future.result()
        except CancelledError:
            raise ScorerClosed(CLOSED_MEANWHILE) from None
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: nobody wants the verdict any more
            raise

    def _refuse_own_thread(self) -> None:
        """What runs on the scorer's own loop, such as an asynchronous verifier, would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the scorer's own event loop would never end; use submit")


async def _make(
    verifiers: Mapping[str, SelectedVerifier | Verifier],
    config: ScoringConfig | None,
    logs: Path | None,
    warn: Callable[[str], None],
) -> Scorer:
    return Scorer(verifiers, config, logs, warn)
