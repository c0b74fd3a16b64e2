"""The trainer as the controller sees it: calls to the ranks that hold the model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from reroll.api import (
    Placement,
    RerollError,
    RunFile,
    Sample,
    Selection,
    TensorSpec,
    WeightBucket,
    WeightGroup,
    Worker,
    WorkerDied,
    WorkerSpec,
)
from reroll.training.config import ObjectiveSection, TrainerSection
from reroll.training.cut import MicroBatchRule, RankStep, cut_collection, pass_tokens
from reroll.workers.together import together

DEATH_SECONDS = 5.0
"""How long the death of another rank is waited for when a rank fails."""


class Trainer:
    """All trainer ranks, called together. `version` counts completed optimizer steps."""

    def __init__(
        self,
        workers: Sequence[Worker],
        global_batch_size: int,
        rule: MicroBatchRule,
        weight_device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self.workers = list(workers)
        self.version = 0
        self.weight_device = weight_device
        # Engines take a bucket one after another, and none is gathered while another one is on its way.
        self._sending = asyncio.Lock()
        self._kept: tuple[list[TensorSpec], bool] | None = None
        self._global_batch_size = global_batch_size
        self._rule = rule

    async def train(self, samples: list[Sample]) -> list[dict[str, Any]]:
        """Trains on a collection's samples; metrics of each optimizer step."""
        cut = self._cut(samples)
        self._kept = None
        found = await self._call("train", *([steps] for steps in cut))
        self.version += len(found[0])
        steps: list[dict[str, Any]] = found[0]
        return steps

    async def reference_divergence(self, samples: list[Sample], keep: bool) -> dict[int, float]:
        """By slot, the summed log-ratio `Σ logπ - logπ_ref` of a response's tokens to the reference.

        Args:
            keep: the same samples, with other advantages, are trained on next, and need not be scored again.
        """
        found = await self._call("score", *([steps, keep] for steps in self._cut(samples)))
        return {slot: value for part in found for slot, value in part.items()}

    async def export_weights(self, directory: Path, bucket_bytes: int) -> list[WeightBucket]:
        found: list[list[WeightBucket]] = await self._together("export_weights", directory, bucket_bytes)
        return found[0]

    async def weight_layout(self, bucket_bytes: int) -> list[list[TensorSpec]]:
        layout: list[list[TensorSpec]] = await self.workers[0].call("weight_layout", bucket_bytes)
        return layout

    async def host_group(
        self, name: str, world_size: int, backend: Literal["gloo", "nccl"], timeout: float
    ) -> WeightGroup:
        group: WeightGroup = await self.workers[0].call("host_group", name, world_size, backend, timeout)
        return group

    async def join_group(self, name: str) -> None:
        await self.workers[0].call("join_group", name)

    async def send_bucket(self, group: str, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        wanted = ([*bucket], flattened)
        async with self._sending:
            if self._kept != wanted:
                self._kept = None
                await self._together("gather_bucket", *wanted)
                self._kept = wanted
            await self.workers[0].call("send_bucket", group)

    async def drop_bucket(self) -> None:
        self._kept = None
        await self.workers[0].call("drop_bucket")

    async def leave_group(self, name: str) -> None:
        await self.workers[0].call("leave_group", name)

    async def completed_steps(self) -> int:
        """Asks rank 0, which answers once the calls made before have ended. `version` is left to `train`, which may
        be about to count the same steps."""
        return int(await self.workers[0].call("version"))

    async def export_hf(self, directory: Path, chat_template: str | None = None) -> None:
        """Writes a Hugging Face directory that transformers loads, with the starting checkpoint's own chat template
        unless another one is given."""
        await self._together("export_hf", directory, chat_template)

    async def save(self, folder: Path, background: bool) -> None:
        """Every rank writes its part of a checkpoint into `folder`."""
        await self.start_save(folder, background)

    def start_save(self, folder: Path, background: bool) -> Awaitable[Any]:
        """The same, with the calls made before this returns. In the `background`, training may go on at once: what is
        written is the state at the call."""
        return _all_ended([worker.call("save", folder, background) for worker in self.workers])

    async def restore(self, folder: Path, version: int) -> None:
        """Every rank reads its part; the trainer goes on at `version`."""
        self._kept = None
        await self._together("restore", folder, version)
        self.version = version

    async def weights_digest(self) -> str:
        """SHA-256 over all tensors, comparable with an engine's."""
        found: list[str] = await self._together("weights_digest")
        return found[0]

    async def gradient_digest(self, samples: list[Sample]) -> str:
        """SHA-256 over the gradient that the samples would have as one step."""
        found: list[str] = await self._call("gradient_digest", *([steps] for steps in self._cut(samples, len(samples))))
        return found[0]

    async def logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """The model's log-probabilities of the tokens that carry loss, by sample; every sample has a slot of its
        own."""
        found = await self._call("logprobs", *([steps] for steps in self._cut(samples)))
        by_slot = dict(pair for part in found for pair in part)
        return [by_slot[sample.slot] for sample in samples]

    async def memory(self) -> list[dict[str, int]]:
        """By rank, bytes of parameters and optimizer state, and the most held so far."""
        return await self._together("memory")

    def _cut(self, samples: Sequence[Sample], global_batch_size: int | None = None) -> list[list[RankStep]]:
        return cut_collection(samples, global_batch_size or self._global_batch_size, len(self.workers), self._rule)

    async def _together(self, method: str, *arguments: Any) -> list[Any]:
        """The same call on every rank."""
        return await self._call(method, *([*arguments] for _ in self.workers))

    async def _call(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        """One call on each rank, with its own arguments; the results by rank."""
        return await call_ranks(self.workers, method, arguments)


async def call_ranks(workers: Sequence[Worker], method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """Raises what a rank raised; if another one died, that it died: its end is what the others fail of."""
    try:
        return await together(_called(worker, method, given) for worker, given in zip(workers, arguments, strict=True))
    except RerollError:
        raise
    except Exception as error:
        if len(workers) > 1:
            await _raise_death(workers, error)
        raise


async def _all_ended(calls: Sequence[Awaitable[Any]]) -> None:
    """Raises the first failure once every call has ended: what ranks do together, none of them does any more then."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found


async def _called(worker: Worker, method: str, arguments: Sequence[Any]) -> Any:
    return await worker.call(method, *arguments)


async def _raise_death(workers: Sequence[Worker], error: Exception) -> None:
    asked = [asyncio.ensure_future(worker.call("version")) for worker in workers]
    await asyncio.wait(asked, timeout=DEATH_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    for answer in asked:
        if answer.done() and isinstance(death := answer.exception(), WorkerDied):
            raise death from error
        answer.cancel()


def require_training_extra() -> None:
    """RerollError unless what the worker imports is installed."""
    missing = [name for name in ("torch", "transformers", "safetensors", "accelerate") if find_spec(name) is None]
    if missing:
        raise RerollError(f"training needs {', '.join(missing)}: pip install 'reroll[train]'")


async def start_trainer(
    run: RunFile,
    placement: Placement,
    *,
    model_directory: Path,
    temperature: float,
    global_batch_size: int,
    total_steps: int,
    constant_length: int | None,
    correction: Selection | None,
    scoring_pass: bool,
    seed: int,
    logs: Path,
    diagnostic_interval: int | None = None,
) -> Trainer:
    """Starts the ranks and loads the model.

    Args:
        scoring_pass: whether the standalone scoring pass runs at every collection.
        diagnostic_interval: optimizer steps from one diagnostic step to the next; None for none.
    """
    objective, section = run.get(ObjectiveSection), run.get(TrainerSection)
    size = section.num_ranks
    specs = trainer_specs(section, await placement.devices(), seed, logs)
    workers = await together(placement.start(spec) for spec in specs)
    address = await workers[0].call("listen") if size > 1 else None
    arguments = (
        address,
        model_directory,
        temperature,
        objective.recipe() | {"constant_length": constant_length},
        section.step_settings(total_steps)
        | {"use_rollout_logprobs": objective.use_rollout_logprobs, "diagnostic_interval": diagnostic_interval},
        section.scoring_rule(scoring_pass),
        _correction(run, correction),
        objective.needs_reference,
        section.activation_checkpointing,
        section.packing,
    )
    facts = await call_ranks(workers, "load", [arguments] * size)
    packed, cost = facts[0]["packed"], pass_tokens(facts[0]["device"])
    rule = MicroBatchRule(section.micro_batch_tokens, section.micro_batch_size, packed, cost)
    return Trainer(workers, global_batch_size, rule, "cuda" if facts[0]["device"].startswith("cuda") else "cpu")


def trainer_specs(section: TrainerSection, devices: int | None, seed: int, logs: Path) -> list[WorkerSpec]:
    """The ranks, in their order, for a placement that has `devices` to hand out; None: it hands none out."""
    return [_spec(section, rank, devices, seed, logs) for rank in range(section.num_ranks)]


def _spec(section: TrainerSection, rank: int, devices: int | None, seed: int, logs: Path) -> WorkerSpec:
    name = f"trainer-{rank}" if section.num_ranks > 1 else "trainer"
    on_gpu = section.device == "cuda" or (section.device == "auto" and bool(devices))
    if devices is None:
        visible = {"CUDA_VISIBLE_DEVICES": _visible_device(rank, section.device)}
    else:  # a rank on a GPU sees what it is given, another one none that were given to somebody else
        visible = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return WorkerSpec(
        name=name,
        target="reroll.training.worker:TrainerWorker",
        arguments={
            "rank": rank,
            "size": section.num_ranks,
            "device": section.device,
            "compute_type": section.compute_dtype,
            "threads": section.threads,
            "seed": seed,
        },
        environment={
            "OMP_NUM_THREADS": str(section.threads),
            "HF_HUB_OFFLINE": "1",
            **visible,
            **_allocator(section),
        },
        log=logs / f"{name}.log",
        gpus=int(on_gpu),
        role="trainer",
    )


def _visible_device(rank: int, device: str) -> str:
    """A rank sees its own device alone, so that nothing of it, such as a thread that writes, touches another one's."""
    if device == "cpu":
        return ""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return str(rank)
    devices = [name for name in given.split(",") if name]
    return devices[rank] if rank < len(devices) else ""


def _allocator(section: TrainerSection) -> dict[str, str]:
    """Micro-batches differ in shape: segments that grow waste less than ones of fixed sizes."""
    names = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    return {} if names & {*os.environ, *section.env_vars} else {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _correction(run: RunFile, selection: Selection | None) -> tuple[str, dict[str, object]] | None:
    if selection is None:
        return None
    cls = run.component("corrections", selection.name)
    return f"{cls.__module__}:{cls.__qualname__}", dict(selection.options)
