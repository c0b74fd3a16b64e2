"""The controller's side of the embedded engine. Imports no torch."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from reroll.api import (
    CommitCost,
    Completion,
    Config,
    Engine,
    EngineContext,
    EngineError,
    EngineUnavailable,
    GenerationRequest,
    PlannedEngine,
    PlannedModel,
    RunFile,
    TensorSpec,
    WeightBucket,
    WeightGroup,
    WeightStream,
    Worker,
    WorkerDied,
    WorkerSpec,
)

if TYPE_CHECKING:
    # `plan` asks this module for the configuration alone, and asyncio would be a tenth of its time.
    import asyncio

TARGET = "reroll.serving.local.worker:EngineWorker"


class LocalEngineConfig(Config):
    """Options of the embedded engine."""

    max_running_requests: int = Field(default=256, ge=1)
    """Most requests that one step advances; the others wait, first come first served."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of each engine's arithmetic. A small model is slower with more, above all on busy cores."""
    max_context_len: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and response together; unset, the model's own limit."""
    kv_cache_mb: int = Field(default=2048, ge=1)
    """Most memory for keys and values, in MiB. It is taken as requests need it; those that would not fit wait."""
    prefill_tokens: int = Field(default=8192, ge=1)
    """Most prompt tokens that one step takes in, which bounds its memory; a longer prompt joins alone."""
    eos_token_ids: tuple[int, ...] | None = None
    """Tokens that end every response; unset, the model's own. With an empty list only lengths and the requests'
    own stop tokens and strings end one."""


class LocalEngine(Engine):
    """One worker process with a Hugging Face model.

    Calls of `generate` made in one turn of the event loop reach the scheduler together and in order.
    Equal requests submitted together to an idle engine therefore give equal token ids and
    log-probabilities, to the bit, in every run.
    """

    name: ClassVar[str] = "local"
    Config = LocalEngineConfig
    digest_like_trainer = True

    def __init__(self, config: LocalEngineConfig | None, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker
        self.address = f"local:{worker.name}"
        self._pending: list[tuple[GenerationRequest, asyncio.Future[Completion]]] = []
        self._tasks: set[asyncio.Future[Any]] = set()

    @classmethod
    def deterministic(cls, config: Any, run: RunFile) -> bool:
        """Every request draws from its own seed. What is computed beside it changes last bits of probabilities, and by
        these a token in millions."""
        return True

    @classmethod
    async def start(cls, config: Any, context: EngineContext) -> LocalEngine:
        """Starts the worker and waits until its model is loaded and checked.

        A `tokenizer.json` in the model's directory serves stop strings.

        Args:
            config: a LocalEngineConfig, or None for its defaults.

        Raises:
            EngineError: the model cannot be served exactly.
        """
        config = config or LocalEngineConfig()
        (spec,) = cls.worker_specs(config, context)
        return cls(config, await context.placement.start(spec))

    @classmethod
    def worker_specs(cls, config: LocalEngineConfig, context: EngineContext) -> tuple[WorkerSpec]:
        arguments = worker_arguments(config, context.model_directory, context.version)
        return (WorkerSpec(context.name, TARGET, arguments, worker_environment(config), context.log, role="engine"),)

    @classmethod
    def planned(cls, config: LocalEngineConfig, run: RunFile, model: PlannedModel) -> PlannedEngine:
        """Weights are served in float32, on the CPU; new ones stand beside them while a publication is staged."""
        weights = None if model.parameters is None else 4 * model.parameters
        return PlannedEngine(
            worker=worker_arguments(config, model.directory, 0),
            environment=worker_environment(config),
            gpus=0,
            memory={"weights": weights, "staged_weights": weights, "kv_cache": config.kv_cache_mb * 2**20},
        )

    @classmethod
    def problems(cls, config: LocalEngineConfig, context_len: int) -> list[str]:
        limit = config.max_context_len
        if limit is None or context_len <= limit:
            return []
        return [f"max_context_len = {limit} is too small: raise it to {context_len}, or lower the lengths"]

    async def generate(self, request: GenerationRequest) -> Completion:
        from asyncio import get_running_loop

        loop = get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        if not self._pending:
            loop.call_soon(self._flush)
        self._pending.append((request, future))
        # A cancelled await cancels the future, whose callback then aborts the request in the worker.
        return await future

    def _flush(self) -> None:
        """Sends what came up in this turn: one submission, then one call a result."""
        pending, self._pending = self._pending, []
        pending = [(request, future) for request, future in pending if not future.cancelled()]
        if not pending:
            return
        submission = self._task(self.worker.call("submit", [request for request, _ in pending]))
        submission.add_done_callback(lambda done: _fail(done, [future for _, future in pending]))
        for request, future in pending:
            result = self._task(self.worker.call("result", request.request_id))
            result.add_done_callback(lambda done, future=future: _pass_on(done, future))  # type: ignore[misc]
            future.add_done_callback(lambda done, name=request.request_id: self._cancelled(done, name))  # type: ignore[misc]

    def _cancelled(self, done: asyncio.Future[Completion], request_id: str) -> None:
        if done.cancelled():
            self._task(self.worker.call("abort", request_id)).add_done_callback(_retrieve)

    def _task(self, call: Awaitable[Any]) -> asyncio.Future[Any]:
        from asyncio import ensure_future

        # The loop itself keeps only weak references to tasks.
        task: asyncio.Future[Any] = ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def pause(self, mode: Literal["in_place", "retract", "abort"] = "in_place") -> None:
        await self.worker.call("pause", mode)

    async def resume(self) -> None:
        await self.worker.call("resume")

    async def flush_cache(self) -> None:
        await self.worker.call("flush_cache")

    async def stage_weights(self, buckets: list[WeightBucket]) -> None:
        await self.worker.call("stage_weights", buckets)

    async def join_weight_group(self, group: WeightGroup) -> None:
        await self.worker.call("join_group", group)

    async def leave_weight_group(self, name: str) -> None:
        await self.worker.call("leave_group", name)

    async def receive_bucket(self, name: str, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        """Stages what the trainer broadcasts into the group meanwhile."""
        await self.worker.call("receive_bucket", name, bucket, flattened)

    async def stage_stream(self, stream: WeightStream) -> None:
        from reroll.workers.together import together

        for number, bucket in enumerate(stream.buckets):
            await together(
                [self.receive_bucket(stream.group.name, bucket, stream.flattened), stream.send(number)],
            )

    async def commit_weights(self, version: int, recompute: bool = False) -> CommitCost:
        cost: CommitCost = await self.worker.call("commit_weights", version, recompute)
        return cost

    async def weight_version(self) -> int:
        version: int = await self.worker.call("weight_version")
        return version

    async def count_as(self, version: int) -> None:
        """Gives the served weights another version number: requests in flight get a span of it."""
        await self.worker.call("count_as", version)

    async def outputs(self, request_ids: list[str]) -> dict[str, list[int]]:
        """What requests in flight have generated so far; those that have ended are left out."""
        outputs: dict[str, list[int]] = await self.worker.call("outputs", request_ids)
        return outputs

    async def weights_digest(self) -> str:
        digest: str = await self.worker.call("weights_digest")
        return digest

    async def health(self) -> dict[str, Any]:
        health: dict[str, Any] = await self.worker.call("health")
        return health

    async def lost(self) -> EngineUnavailable:
        """Once the engine has stopped while its worker lives on."""
        with suppress(WorkerDied):
            return EngineUnavailable(await self.worker.call("ended"))
        return await super().lost()

    async def abort(self, request_id: str | None = None) -> None:
        await self.worker.call("abort", request_id)

    async def close(self) -> None:
        await self.worker.close()


def worker_arguments(config: LocalEngineConfig, model_directory: Path, version: int) -> dict[str, Any]:
    """Keyword arguments of `EngineWorker`."""
    return {
        "model_dir": str(model_directory),
        "version": version,
        "max_running_requests": config.max_running_requests,
        "threads": config.threads,
        "max_context_len": config.max_context_len,
        "kv_cache_mb": config.kv_cache_mb,
        "prefill_tokens": config.prefill_tokens,
        "eos_token_ids": config.eos_token_ids,
    }


def worker_environment(config: LocalEngineConfig) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(config.threads), "TOKENIZERS_PARALLELISM": "false"}


def _pass_on(done: asyncio.Future[Completion], future: asyncio.Future[Completion]) -> None:
    """Gives a call's outcome to the one who awaits it, unless that one has left."""
    if done.cancelled():
        future.cancel()
        return
    error = done.exception()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _fail(done: asyncio.Future[None], futures: list[asyncio.Future[Completion]]) -> None:
    error = EngineError("the submission was cancelled") if done.cancelled() else done.exception()
    if error is not None:
        for future in futures:
            if not future.done():
                future.set_exception(error)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """A request that nobody awaits any more has no use for a failure."""
    if not done.cancelled():
        done.exception()
