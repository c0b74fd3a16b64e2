"""The engine's worker process: what the controller calls.

Methods that return a Future are answered when it is done; see `reroll.workers.answering`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch

from reroll.api import (
    CommitCost,
    Completion,
    EngineError,
    GenerationRequest,
    RequestRefused,
    TensorSpec,
    WeightBucket,
    WeightGroup,
)
from reroll.models.files import ModelFiles
from reroll.models.load import load_model
from reroll.serving.limits import Limits, check
from reroll.serving.local.groups import WeightGroups
from reroll.serving.local.requests import Active
from reroll.serving.local.runner import ModelRunner
from reroll.serving.local.scheduler import Scheduler
from reroll.serving.local.stops import StopStrings
from reroll.serving.local.suitability import REMEDY
from reroll.serving.local.weights import StagedWeights


class EngineWorker:
    """A model that generates.

    Args:
        model_dir: a Hugging Face model directory.
        version: weight version that the directory counts as.
        others: options of `reroll.serving.local.engine.LocalEngineConfig`.

    Raises:
        EngineError: the model cannot be served exactly.
    """

    def __init__(
        self,
        model_dir: str,
        version: int = 0,
        threads: int = 1,
        max_running_requests: int = 256,
        max_context_len: int | None = None,
        kv_cache_mb: int = 2048,
        prefill_tokens: int = 8192,
        eos_token_ids: tuple[int, ...] | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        directory = Path(model_dir)
        try:
            model = load_model(directory)
        except ValueError as error:  # transformers knows no such attention for the architecture, among others
            raise EngineError(f"the model in {directory} cannot be served: {error}; {REMEDY}") from error
        self.runner = ModelRunner(model, max_context_len, kv_cache_mb * 2**20)
        self.weights = StagedWeights(model)
        stop_strings = StopStrings(directory / "tokenizer.json")
        self.limits = Limits(
            self.runner.vocab_size, self.runner.context_len, self.runner.cache_tokens, stop_strings.available
        )
        ends = ModelFiles(directory).eos_token_ids if eos_token_ids is None else eos_token_ids
        self.scheduler = Scheduler(self.runner, stop_strings, ends, version, max_running_requests, prefill_tokens)
        self._orders = itertools.count()
        self._in_flight: dict[str, Future[Completion]] = {}
        self._results: dict[str, deque[Future[Completion]]] = {}
        self._lock = threading.Lock()
        self._groups = WeightGroups(self.weights)
        # Staging reads files while requests are served, in the order of the calls.
        self._staging = ThreadPoolExecutor(1, thread_name_prefix="stage")

    def submit(self, requests: list[GenerationRequest]) -> None:
        """Accepts requests, all between the same two steps; a refusal is its own request's result."""
        accepted = []
        for request in requests:
            future: Future[Completion] = Future()
            try:
                check(request, self.limits)
                self._enter(request.request_id, future)
            except RequestRefused as error:
                future.set_exception(error)
            else:
                accepted.append(Active(request, next(self._orders), future, time.time()))
            # A queue an id: a second request of the same id is refused without taking the first one's place.
            self._results.setdefault(request.request_id, deque()).append(future)
        if accepted:
            self.scheduler.submit(accepted)

    def _enter(self, request_id: str, future: Future[Completion]) -> None:
        with self._lock:
            if request_id in self._in_flight:
                raise RequestRefused(f"request_id {request_id!r} is already in flight; give every request its own")
            self._in_flight[request_id] = future
        future.add_done_callback(lambda _: self._leave(request_id))

    def _leave(self, request_id: str) -> None:
        with self._lock:
            del self._in_flight[request_id]

    def result(self, request_id: str) -> Future[Completion]:
        """The completion of a submitted request; may be asked for once."""
        futures = self._results.get(request_id)
        if not futures:
            raise EngineError(f"request_id {request_id!r} was not submitted, or its result was taken before")
        future = futures.popleft()
        if not futures:
            del self._results[request_id]
        return future

    def abort(self, request_id: str | None = None) -> Future[None]:
        return self.scheduler.do(lambda: self.scheduler.abort(request_id))

    def pause(self, mode: Literal["in_place", "retract", "abort"] = "in_place") -> Future[None]:
        if mode not in ("in_place", "retract", "abort"):
            raise EngineError(f"pause mode is {mode!r}; give in_place, retract or abort")
        return self.scheduler.do(lambda: self.scheduler.pause(mode))

    def resume(self) -> Future[None]:
        return self.scheduler.do(self.scheduler.resume)

    def flush_cache(self) -> Future[None]:
        return self.scheduler.do(self.scheduler.flush_cache)

    def stage_weights(self, buckets: list[WeightBucket]) -> Future[None]:
        return self._staging.submit(self.weights.stage, buckets)

    def join_group(self, group: WeightGroup) -> Future[None]:
        return self._groups.join(group)

    def leave_group(self, name: str) -> Future[None]:
        return self._groups.leave(name)

    def receive_bucket(self, name: str, bucket: Sequence[TensorSpec], flattened: bool) -> Future[None]:
        return self._groups.receive(name, bucket, flattened)

    def commit_weights(self, version: int, recompute: bool = False) -> Future[CommitCost]:
        return self.scheduler.do(lambda: self.scheduler.use_version(version, self.weights.commit, recompute))

    def weight_version(self) -> int:
        """Without waiting for a step: what was committed before has been answered before."""
        return self.scheduler.version

    def count_as(self, version: int) -> Future[None]:
        """Gives the served weights another version number; further tokens are counted as its."""
        return self.scheduler.do(lambda: self.scheduler.count_as(version))

    def outputs(self, request_ids: list[str]) -> Future[dict[str, list[int]]]:
        """Request id → token ids so far, of those that have not ended."""
        return self.scheduler.do(lambda: self.scheduler.outputs(request_ids))

    def weights_digest(self) -> Future[str]:
        return self.scheduler.do(self.weights.digest)

    def ended(self) -> Future[str]:
        """Why the engine has stopped, once it has: its process lives on."""
        reason: Future[str] = Future()
        self.scheduler.ended.add_done_callback(lambda done: reason.set_result(str(done.result())))
        return reason

    def health(self) -> dict[str, Any]:
        """Load and totals; EngineError once the engine cannot serve.

        Now: `running`, `queued` requests, `paused`, `weight_version`. `context_len`: most tokens of a request.
        `recorded`: whether decode steps replay a recording of the forward, which is about twice as fast for a small
        model. Since the start: `generated_tokens`, `prefill_tokens`, `steps`, `busy_seconds`, `recompute_seconds`, and
        `mean_batch`, the running requests of a step on average.
        """
        scheduler, counters = self.scheduler, self.scheduler.counters
        if scheduler.failure is not None:
            raise EngineError(str(scheduler.failure))
        return {
            "running": scheduler.batch.size,
            "queued": len(scheduler.waiting),
            "paused": scheduler.paused,
            "weight_version": scheduler.version,
            "context_len": self.runner.context_len,
            "recorded": self.runner.graph is not None,
            "generated_tokens": counters.tokens,
            "prefill_tokens": counters.prefill_tokens,
            "steps": counters.steps,
            "busy_seconds": counters.busy_seconds,
            "recompute_seconds": counters.recompute_seconds,
            "mean_batch": counters.batch_total / max(counters.steps, 1),
        }
