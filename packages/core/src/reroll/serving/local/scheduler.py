"""The thread that runs the model: requests join and leave between its steps.

Everything that happens to the engine comes through one inbox and is done between two steps, in order, so
that requests submitted together give the same batches in every run and nothing changes during a forward.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from reroll.api import CommitCost, EngineError, FinishReason
from reroll.serving.local.batch import Batch
from reroll.serving.local.requests import Active
from reroll.serving.local.runner import Joining, ModelRunner
from reroll.serving.local.sampling import sample
from reroll.serving.local.stops import StopStrings

JOIN_SHARE = 16
"""While more requests wait than there are free rows, they join once a sixteenth of all rows is free: a step with
joining prompts costs more than one without, by an amount that hardly depends on how many join."""


@dataclass
class Counters:
    """What the engine did since its start; times in seconds.

    Attributes:
        batch_total: running requests summed over steps.
        prefill_tokens: prompt tokens computed, those of retracted requests included; a prompt that several requests
            join with counts once.
        recompute_seconds: time of steps in which retracted requests joined again.
    """

    steps: int = 0
    tokens: int = 0
    batch_total: int = 0
    prefill_tokens: int = 0
    busy_seconds: float = 0.0
    recompute_seconds: float = 0.0


class Scheduler:
    """Continuous batching: each step gives every running request one token.

    Args:
        version: weight version that is served at first.
        max_running: most requests in the batch; the others wait, first come first served.
        prefill_tokens: most prompt tokens that one step takes in; a longer prompt joins alone.
    """

    def __init__(
        self,
        runner: ModelRunner,
        stop_strings: StopStrings,
        eos_token_ids: tuple[int, ...],
        version: int,
        max_running: int,
        prefill_tokens: int,
    ) -> None:
        self.runner = runner
        self.stop_strings = stop_strings
        self.version = version
        self.max_running = max_running
        self.prefill_tokens = prefill_tokens
        self.batch = Batch(eos_token_ids, runner.vocab_size)
        self.waiting: deque[Active] = deque()
        self.paused = False
        self.counters = Counters()
        self.failure: EngineError | None = None
        self.ended: Future[EngineError] = Future()
        """Why the thread has stopped, once it has and everybody who waited for it was told."""
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._live: set[Active] = set()
        self._submitting = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    # Called from other threads.

    def do(self, action: Callable[[], Any]) -> Future[Any]:
        """Runs `action` between two steps, after everything that was asked before."""
        future: Future[Any] = Future()
        # The lock orders this with a failure: a message is either refused here or found by `_fail`.
        with self._submitting:
            if self.failure is not None:
                future.set_exception(_copy(self.failure))
            else:
                self._inbox.put((action, future))
        return future

    def submit(self, requests: list[Active]) -> None:
        """Appends requests to the queue, all between the same two steps."""

        def append() -> None:
            self.waiting.extend(requests)
            self._live.update(requests)

        outcome = self.do(append)

        def refuse(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                for active in requests:
                    active.future.set_exception(EngineError(str(error)))

        outcome.add_done_callback(refuse)

    def close(self) -> None:
        def stop() -> None:
            self._closing = True

        self.do(stop)
        self._thread.join()

    # Actions for `do`.

    def pause(self, mode: Literal["in_place", "retract", "abort"]) -> None:
        self.paused = True
        if mode == "retract":
            self._retract()
        elif mode == "abort":
            self.abort(None)

    def resume(self) -> None:
        self.paused = False

    def abort(self, request_id: str | None) -> None:
        """Ends one request or all; one that is unknown has ended already."""
        rows = [
            row for row, active in enumerate(self.batch.requests) if request_id in (None, active.request.request_id)
        ]
        self._finish(dict.fromkeys(rows, "abort"))
        queued = [active for active in self.waiting if request_id in (None, active.request.request_id)]
        for active in queued:
            self.waiting.remove(active)
            self._complete(active, "abort", time.time())

    def flush_cache(self) -> None:
        """Gives unused memory back. A prompt is shared within one step alone, so that there are no prefixes to drop."""
        if self.batch.size == 0:
            self.runner.cache.clear()

    def use_version(self, version: int, swap: Callable[[], None], recompute: bool) -> CommitCost:
        """Runs `swap`, which changes the weights or raises, and counts further tokens as `version`'s.

        With `recompute`, requests that were running are again when this returns, with caches of the new weights; while
        paused, they wait to be computed on resume.
        """
        began = time.perf_counter()
        swap()
        if recompute:
            self.version = version
            self._retract()
        else:
            self.count_as(version)
        swapped = time.perf_counter()
        if not recompute or self.paused:
            return CommitCost(swapped - began)
        while self.waiting and self.waiting[0].retracted:
            self._step()
        return CommitCost(swapped - began, time.perf_counter() - swapped)

    def count_as(self, version: int) -> None:
        """Counts further tokens as `version`'s."""
        self.version = version
        for active, count in zip(self.batch.requests, self.batch.column("count").tolist(), strict=True):
            active.starts.append((version, count))

    def outputs(self, request_ids: list[str]) -> dict[str, list[int]]:
        """What the requests among these that have not ended have generated so far."""
        found = {active.request.request_id: active.output_ids.tolist() for active in self.waiting}
        found |= {active.request.request_id: self.batch.output(row) for row, active in enumerate(self.batch.requests)}
        return {name: found[name] for name in request_ids if name in found}

    def _retract(self) -> None:
        """Running requests go back to the head of the queue; their caches are computed again as they join."""
        rows = range(self.batch.size)
        actives = sorted((self.batch.store(row) for row in rows), key=lambda active: active.order)
        for active in actives:
            active.retracted = True
        self.batch.remove(list(rows))
        self.waiting.extendleft(reversed(actives))

    # The thread.

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._take_messages()
                    if not self.paused and (self.batch.size or self.waiting):
                        self._step()
        except BaseException as error:
            self._fail(_stopped(error))
        else:
            self._fail(EngineError("the engine was closed"))

    def _take_messages(self) -> None:
        """Does what was asked; waits for something while there is nothing to compute."""
        while not self._closing:
            idle = self.paused or not (self.batch.size or self.waiting)
            if not idle and self._inbox.empty():
                return
            action, future = self._inbox.get()
            try:
                value = action()
            except EngineError as error:
                future.set_exception(error)
            except BaseException as error:
                # Not a refusal: the state may be half changed.
                future.set_exception(_stopped(error))
                raise
            else:
                future.set_result(value)

    def _step(self) -> None:
        began = time.perf_counter()
        prompts = self._admit()
        joining = [active for _, actives in prompts for active in actives]
        batch = self.batch
        last, lengths = batch.column("last"), batch.lengths
        batch.add(joining)
        given = [Joining(ids, len(actives)) for ids, actives in prompts]
        logits_RV = self.runner.step(last, lengths, given, int(batch.column("reserved").max()))
        drawn = sample(logits_RV, batch.settings(), batch.uniforms())
        stopped_R, full_R = batch.append(drawn)
        self._count(joining, sum(len(ids) for ids, _ in prompts), began)
        self._finish(self._ended(stopped_R, full_R))

    def _admit(self) -> list[tuple[Any, list[Active]]]:
        """Takes requests from the head of the queue as long as rows, cache and the step's prompt tokens suffice:
        distinct token ids, int64, and the requests that join with them, the shortest first.

        Retracted requests come before all others, and in steps of their own.
        """
        if not self.waiting:
            return []
        head, rows = self.waiting[0], self.batch.size
        few = self.max_running - rows < min(len(self.waiting), self.max_running // JOIN_SHARE)
        if rows and few and not head.retracted:
            return []
        longest = int(self.batch.column("reserved").max()) if rows else 0
        tokens, now = 0, time.time()
        found: dict[bytes, tuple[Any, list[Active]]] = {}
        while self.waiting and rows < self.max_running:
            active = self.waiting[0]
            longest = max(longest, active.reserved)
            # The cache is a rectangle: every row takes the length of the longest.
            if active.retracted != head.retracted or (rows + 1) * longest > self.runner.cache_tokens:
                break
            ids = active.tokens
            key = ids.tobytes()
            if key not in found:
                tokens += len(ids)
                if found and tokens > self.prefill_tokens:
                    break
                found[key] = (ids, [])
            found[key][1].append(self.waiting.popleft())
            active.start = active.start or now
            active.starts.append((self.version, len(active.output_ids)))
            rows += 1
        return sorted(found.values(), key=lambda prompt: len(prompt[0]))

    def _count(self, joining: list[Active], tokens: int, began: float) -> None:
        """One step: the requests that joined, and how many prompt tokens were computed for them."""
        seconds = time.perf_counter() - began
        counters = self.counters
        counters.steps += 1
        counters.tokens += self.batch.size
        counters.batch_total += self.batch.size
        counters.busy_seconds += seconds
        if joining:
            now = time.time()
            counters.prefill_tokens += tokens
            if joining[0].retracted:
                counters.recompute_seconds += seconds
            for active in joining:
                active.first_token = active.first_token or now
                active.retracted = False

    def _ended(self, stopped_R: Any, full_R: Any) -> dict[int, FinishReason]:
        ended: dict[int, FinishReason] = {int(row): "length" for row in np.flatnonzero(full_R)}
        ended.update({int(row): "stop" for row in np.flatnonzero(stopped_R)})
        for row, active in enumerate(self.batch.requests):
            stop = active.request.sampling.stop
            if stop and self.stop_strings.ended(self.batch.output(row), stop):
                ended[row] = "stop"
        return ended

    def _finish(self, ended: dict[int, FinishReason]) -> None:
        """Rows leave the batch with their completions."""
        if not ended:
            return
        now = time.time()
        finished = [(self.batch.store(row), reason) for row, reason in ended.items()]
        sources, targets = self.batch.remove(list(ended))
        if sources:
            self.runner.cache.move(sources, targets, int(self.batch.lengths.max()))
        for active, reason in finished:
            self._complete(active, reason, now)

    def _complete(self, active: Active, reason: FinishReason, end: float) -> None:
        completion = active.completion(reason, end)
        self._live.discard(active)
        active.future.set_result(completion)

    def _fail(self, failure: EngineError) -> None:
        """Nothing may wait for a thread that has ended: every request and message gets the error."""
        with self._submitting:
            self.failure = failure
        live, self._live = self._live, set()
        for active in live:
            active.future.set_exception(_copy(failure))
        while not self._inbox.empty():
            _, future = self._inbox.get()
            future.set_exception(_copy(failure))
        self.ended.set_result(failure)


def _stopped(error: BaseException) -> EngineError:
    failure = EngineError(f"the engine stopped: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _copy(failure: EngineError) -> EngineError:
    """An error of each receiver's own: on its way to the controller every one gets notes added."""
    error = EngineError(str(failure))
    error.__cause__ = failure.__cause__
    return error
