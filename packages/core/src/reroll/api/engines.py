"""Engines turn token ids into token ids."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from reroll.api.component import Component
from reroll.api.errors import EngineError, EngineUnavailable
from reroll.api.placement import Placement, WorkerSpec
from reroll.api.planning import PlannedEngine, PlannedModel
from reroll.api.sections import RunFile
from reroll.api.traces import VersionSpan

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How one response is drawn.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_p, top_k, min_p: the usual truncations; 1.0, -1 and 0.0 switch them off.
        max_new_tokens: the response ends with `length` after that many tokens.
        stop_token_ids: tokens that end the response; the model's own EOS ids are always among them.
        stop: strings that end the response once they appear in its text.
        seed: of this response alone; two responses with one seed and one prompt are equal.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_new_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """`input_ids` to continue. `request_id` is unique among the requests in flight."""

    request_id: str
    input_ids: list[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class Completion:
    """What an engine made of a request.

    Attributes:
        output_ids: sampled tokens, the ending stop token included.
        logprobs: natural log-probability of each under the temperature-scaled distribution before any
            truncation (top-p, top-k, min-p); at temperature 0, of the unscaled one.
        weight_versions: spans over `output_ids`.
        finish_reason: `stop` (stop token or string), `length`, or `abort` (with what there was).
        timing: seconds since the epoch: `queued`, `start` (prefill), `first_token`, `end`.
    """

    request_id: str
    output_ids: list[int]
    logprobs: list[float]
    weight_versions: list[VersionSpan]
    finish_reason: FinishReason
    seed: int
    timing: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightBucket:
    """One file of named tensors (safetensors) that an engine stages."""

    path: str
    names: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True)
class TensorSpec:
    """A tensor before it is there. `dtype` as torch names it, without the prefix: `float32`, `bfloat16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of all elements; a type's name holds the bits of one, but for `bool`, which takes a byte."""
        bits = re.search(r"\d+", self.dtype)
        return math.prod(self.shape) * (int(bits[0]) // 8 if bits else 1)


@dataclass(frozen=True)
class WeightGroup:
    """A process group of the trainer and one engine.

    Attributes:
        name: unique in the run.
        host, port: where the ranks meet; the trainer, rank 0, listens there.
        world_size: the engine's ranks, which are 1 and up, and the trainer.
        backend: as torch.distributed names it.
        timeout: seconds that joining, and every broadcast, may take.
    """

    name: str
    host: str
    port: int
    world_size: int
    backend: Literal["gloo", "nccl"]
    timeout: float = 300.0


class WeightStream(Protocol):
    """One publication's tensors on their way through a process group to one engine.

    Attributes:
        buckets: what is broadcast, in order.
        flattened: a bucket travels as one tensor of bytes, in which its tensors follow each other; otherwise every
            tensor travels by itself.
    """

    version: int
    group: WeightGroup
    buckets: Sequence[Sequence[TensorSpec]]
    flattened: bool

    async def send(self, number: int) -> None:
        """Has the trainer broadcast a bucket, while the engine receives it."""


@dataclass(frozen=True)
class CommitCost:
    """What new weights cost the requests in flight.

    Attributes:
        pause_seconds: the engine stood still, recomputation apart.
        recompute_seconds: it computed the caches of running requests again.
    """

    pause_seconds: float = 0.0
    recompute_seconds: float = 0.0


@dataclass(frozen=True)
class EngineContext:
    """What an engine is started with.

    Attributes:
        name: unique in the run; names logs and errors.
        model_directory: the weights that count as `version`, a Hugging Face directory.
        log: file for the engine's output.
        number: of the engine among the run's, from 0.
        run: the run file, for an engine with a section of its own; None outside of a run.
        share_devices: it takes turns with the trainer, see `Engine.release_memory`.
        warn: to be called with what the user should know, while the engine starts for example.
    """

    name: str
    model_directory: Path
    version: int
    placement: Placement
    log: Path
    number: int = 0
    run: RunFile | None = None
    share_devices: bool = False
    warn: Callable[[str], None] = lambda text: None


class Engine(Component):
    """One engine, as the controller sees it. Made by `start`, ended by `close`.

    An engine is always on one weight version as a whole: `stage` changes nothing that is served, and
    `commit` swaps between two decode steps. One that cannot hold two sets of weights loads them in `commit`, paused,
    and its `weight_version` raises until a load has succeeded where one has failed.
    """

    recoverable: ClassVar[bool] = False
    """Whether `recover` can start it again; otherwise its end is the run's."""
    shares_devices: ClassVar[bool] = False
    """Whether it can give its memory up while the trainer uses the same devices."""
    digest_like_trainer: ClassVar[bool] = False
    """Whether `weights_digest` of the trainer's weights is the trainer's own digest, to the bit."""
    address: str
    """Names the engine in logs and in routing; may change when it is started again."""
    holds_start: bool = True
    """Whether it serves the weights that it was started with; if not, they are published before it is used."""
    weight_ranks: int = 1
    """Processes that each receive weights: its tensor-parallel ranks."""
    weight_device: Literal["cpu", "cuda"] = "cpu"
    """Where they receive them: only between devices a process group can be NCCL's."""

    @classmethod
    @abstractmethod
    async def start(cls, config: Any, context: EngineContext) -> Engine:
        """An engine that is ready to serve; EngineError if it cannot serve the model exactly."""

    @classmethod
    def worker_specs(cls, config: Any, context: EngineContext) -> Sequence[WorkerSpec]:
        """The workers that `start` asks `context.placement` for, so that room can be made for all of a run's together.
        One that is not told here is placed where there is room when it is started."""
        return ()

    @classmethod
    def planned(cls, config: Any, run: RunFile, model: PlannedModel) -> PlannedEngine | None:
        """What one engine will be, for `reroll plan`; nothing is started or imported for it. None: it does not say."""
        return None

    @classmethod
    def problems(cls, config: Any, context_len: int) -> list[str]:
        """Why an engine with this configuration could not serve `context_len` tokens of prompt and response."""
        return []

    @classmethod
    def deterministic(cls, config: Any, run: RunFile) -> bool | None:
        """Whether a response follows from weights, prompt and its sampling seed, so that one seed drawn twice is one
        observation; None where that is not known."""
        return None

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Completion:
        """Continues `request.input_ids`.

        Raises:
            RequestRefused: this request cannot be served; it costs one response.
            EngineUnavailable: the engine is lost, and the request is made again, of another one where there is one.
            EngineError: no request can be served; ends the run.
        """

    @abstractmethod
    async def pause(self, mode: Literal["in_place", "retract", "abort"] = "in_place") -> None:
        """Stops decoding: requests wait where they are (`in_place`), wait and are computed again
        from their tokens on resume (`retract`), or end with what they have (`abort`)."""

    @abstractmethod
    async def resume(self) -> None:
        """Goes on after `pause`; without a pause it does nothing. Called after every publication, and after a failed
        one as well."""

    @abstractmethod
    async def flush_cache(self) -> None:
        """Drops cached prefixes; running requests keep their own."""

    @abstractmethod
    async def stage_weights(self, buckets: list[WeightBucket]) -> None:
        """Reads tensors beside the served ones; may be called once a bucket or once for all."""

    async def join_weight_group(self, group: WeightGroup) -> None:
        """Meets the trainer in a process group, ranks 1 and up; called while the trainer joins as well."""
        raise EngineError(f"engine {self.address!r} takes no weights from process groups; use another transport")

    async def leave_weight_group(self, name: str) -> None:
        """Ends its part of the group, also one that failed; a trainer that waits in it gets an error."""
        raise EngineError(f"engine {self.address!r} takes no weights from process groups; use another transport")

    async def stage_stream(self, stream: WeightStream) -> None:
        """Takes all tensors from the stream, whose group it has joined: now, or where it cannot hold two sets of
        weights, in `commit_weights`."""
        raise EngineError(f"engine {self.address!r} takes no weights from process groups; use another transport")

    @abstractmethod
    async def commit_weights(self, version: int, recompute: bool = False) -> CommitCost:
        """Makes the staged tensors the served ones; they must be all of the model's.

        Requests in flight keep their text and go on under the new weights. With `recompute` their caches, shared
        prefixes included, are computed again first; without, nothing should be in flight. After a failure the old
        tensors are served, or none: see the class.
        """

    @abstractmethod
    async def weight_version(self) -> int: ...

    @abstractmethod
    async def weights_digest(self) -> str:
        """Equal for two engines of one kind that serve the same tensors. Where `digest_like_trainer` says so, SHA-256
        over names, types, shapes and bytes of all served tensors, tied ones included, as the trainer computes it."""

    @abstractmethod
    async def health(self) -> dict[str, Any]:
        """Numbers about load; raises when the engine cannot serve."""

    async def lost(self) -> EngineUnavailable:
        """Returns once the engine cannot serve any more, with the reason; after `recover`, of what was started then.
        Where a worker's death tells it, never."""
        from asyncio import get_running_loop

        return await get_running_loop().create_future()  # type: ignore[no-any-return]

    async def recover(self) -> None:
        """Starts it again after it was lost, ending what is left of it; `weight_version` raises until it was loaded.
        May be cancelled, and called again after a failure."""
        raise EngineError(f"engine {self.address!r} cannot be started again")

    async def keep_weights(self) -> None:
        """Serves what it has loaded as the version that it was started with; asked for where nothing will be published,
        of an engine without `holds_start` and after `recover`."""
        raise EngineError(f"engine {self.address!r} cannot say what it has loaded")

    async def release_memory(self) -> None:
        """Gives the memory of its devices up; nothing is in flight. Weights must be loaded after `resume_memory`."""
        raise EngineError(f"engine {self.address!r} cannot share devices with the trainer")

    async def resume_memory(self, weights_only: bool = False) -> None:
        """Takes memory again: of weights, so that they can be loaded, then of everything."""
        raise EngineError(f"engine {self.address!r} cannot share devices with the trainer")

    @abstractmethod
    async def abort(self, request_id: str | None = None) -> None:
        """Ends one request, or all, with what there is."""

    @abstractmethod
    async def close(self) -> None: ...
