"""A trainer rank's process: its part of the policy and of the optimizer, and the files that it writes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import torch

from reroll.api import TensorSpec, TrainingError, WeightBucket, WeightGroup
from reroll.models.digest import state_digest
from reroll.training import export, tensors
from reroll.training.attention import has_varlen_kernel
from reroll.training.cut import RankStep
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import ComputeType, Device, Ranks
from reroll.training.scoring import ScoringRule, StepScores
from reroll.training.sending import WeightSender, layout
from reroll.training.sharding import TOLERANCE, load_policy
from reroll.training.step import PolicyTrainer, StepSettings
from reroll.workers.answering import load_target
from reroll.workers.host import choose_interface, own_host

logger = logging.getLogger("reroll")


class TrainerWorker:
    """One rank. What the controller calls; see `trainer.Trainer` for the calls' meaning.

    Except for `listen`, `version` and what concerns process groups, of which only rank 0 is a member, every rank is
    called with the same method at once.
    """

    def __init__(
        self, rank: int, size: int, device: Device, compute_type: ComputeType, threads: int, seed: int
    ) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed + rank)
        choose_interface()
        self.ranks = Ranks(rank, size, device, compute_type)
        if self.ranks.device.type == "cpu":
            torch.use_deterministic_algorithms(True)
            # Every result is written before it is read; filling fresh memory would only cost time.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            if size > 1:
                _give_freed_memory_back()
        else:
            # Micro-batches have ever new shapes, and cuDNN plans for each of them, at once in another way without
            # gradients: scores would differ from the training forward.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.sender = WeightSender(self.ranks)
        self.trainer: PolicyTrainer
        self._scores: Sequence[StepScores] | None = None

    def listen(self) -> tuple[str, int]:
        return self.ranks.listen(own_host())

    def load(
        self,
        address: tuple[str, int] | None,
        model_directory: Path,
        temperature: float,
        recipe: Mapping[str, Any],
        settings: Mapping[str, Any],
        scoring: Mapping[str, Any],
        correction: tuple[str, Mapping[str, Any]] | None,
        use_reference: bool,
        recompute: bool | None,
        packing: bool | None,
    ) -> dict[str, Any]:
        """Meets the other ranks and loads the model; gives what only the process knows: `packed`, `device`.

        Args:
            address: from rank 0's `listen`; None for a single rank.
            model_directory: the starting checkpoint.
            temperature: of the rollouts; logits are divided by it.
            recipe, settings, scoring: keyword arguments of `Recipe`, `StepSettings` and `ScoringRule`.
            correction: class path and options of the off-policy correction, None for none.
            use_reference: keep a frozen copy of the starting checkpoint.
            recompute: activation checkpointing; None for where memory is a device's.
            packing: None packs where the device has an attention for it.
        """
        self.ranks.join(address)
        self.model_directory = model_directory
        on_gpu = self.ranks.device.type == "cuda"
        policy = load_policy(model_directory, temperature, self.ranks, on_gpu if recompute is None else recompute)
        packed = self._packs(policy, packing)
        self.trainer = PolicyTrainer(
            policy=policy,
            reference=self._reference(temperature) if use_reference else None,
            ranks=self.ranks,
            recipe=Recipe(**recipe),
            correction=_make_correction(correction),
            scoring=ScoringRule(**scoring),
            settings=StepSettings(**settings, packed=packed),
        )
        if self.trainer.settings.dropout and not _has_dropout(policy):
            raise TrainingError(
                f"trainer.disable_dropout is false, but {type(policy.model).__name__} in {model_directory} has no "
                "dropout that is not 0: leave disable_dropout out"
            )
        return {"packed": packed, "device": str(self.ranks.device)}

    def _reference(self, temperature: float) -> Policy:
        return load_policy(self.model_directory, temperature, self.ranks, recompute=False).requires_grad_(False)

    def _packs(self, policy: Policy, wanted: bool | None) -> bool:
        kernel = has_varlen_kernel(self.ranks.device, self.ranks.compute_type)
        if not (kernel if wanted is None else wanted):
            return False
        try:
            policy.check_packing(self.ranks.device, TOLERANCE[self.ranks.compute_type])
        except TrainingError as error:
            if wanted:
                raise
            logger.warning("sequences are padded, not packed: %s", error)
            return False
        return True

    def score(self, steps: list[RankStep], keep: bool) -> dict[int, float]:
        """The standalone scoring pass, kept for the `train` that follows where it is of the same samples; of this
        rank's samples, by slot, the summed log-ratio to the reference, `Σ logπ - logπ_ref` over the tokens that carry
        loss."""
        scored = self.trainer.score(steps)
        self._scores = scored if keep else None
        found: defaultdict[int, float] = defaultdict(float)
        for step, scores in zip(steps, scored, strict=True):
            assert scores.reference is not None, "asked for with a reference only"
            batches = self.trainer.micro_batches(step)
            for cut, batch, ours, theirs in zip(
                step.micro_batches, batches, scores.policy, scores.reference, strict=True
            ):
                for number, value in zip(batch.response_N.tolist(), (ours - theirs).tolist(), strict=True):
                    found[step.samples[cut[number]].slot] += value
        return dict(found)

    def train(self, steps: list[RankStep]) -> list[dict[str, Any]]:
        scores, self._scores = self._scores, None
        self.sender.drop()
        return self.trainer.train_collection(steps, scores)

    def version(self) -> int:
        return self.trainer.version

    def logprobs(self, steps: list[RankStep]) -> list[tuple[int, list[float]]]:
        """Current log-probability of each token that carries loss: (slot, values) of each of this rank's samples."""
        found: list[tuple[int, list[float]]] = []
        for step in steps:
            for cut, batch in zip(step.micro_batches, self.trainer.micro_batches(step), strict=True):
                values: list[list[float]] = [[] for _ in cut]
                scored = self.trainer.policy.score(batch).tolist()
                for number, value in zip(batch.response_N.tolist(), scored, strict=True):
                    values[number].append(value)
                found += [(step.samples[index].slot, row) for index, row in zip(cut, values, strict=True)]
        return found

    def gradient_digest(self, steps: list[RankStep]) -> str:
        """SHA-256 of the gradient that the samples, as one step, would have; nothing is changed."""
        trainer = self.trainer
        trainer.policy.zero_grad(set_to_none=True)
        for step in steps:
            trainer.accumulate_gradients(trainer.micro_batches(step), step.totals, None, anchored=False)
        found = {name: parameter.grad for name, parameter in trainer.policy.model.named_parameters()}
        digest = state_digest((name, tensor) for name, tensor in found.items() if tensor is not None)
        trainer.policy.zero_grad(set_to_none=True)
        return digest

    def weights_digest(self) -> str:
        return state_digest(self.trainer.policy.model.state_dict().items())

    def export_weights(self, directory: Path, bucket_bytes: int) -> list[WeightBucket]:
        return tensors.export_weights(self.trainer.policy.model, directory, bucket_bytes, self.ranks)

    def weight_layout(self, bucket_bytes: int) -> list[list[TensorSpec]]:
        return layout(self.trainer.policy.model, bucket_bytes)

    def host_group(self, name: str, world_size: int, backend: Literal["gloo", "nccl"], timeout: float) -> WeightGroup:
        return self.sender.host(name, world_size, backend, timeout)

    def join_group(self, name: str) -> Future[None]:
        return self.sender.join(name)

    def gather_bucket(self, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        self.sender.gather(self.trainer.policy.model, bucket, flattened)

    def send_bucket(self, name: str) -> Future[None]:
        return self.sender.send(name)

    def drop_bucket(self) -> None:
        self.sender.drop()

    def leave_group(self, name: str) -> Future[None]:
        return self.sender.leave(name)

    def export_hf(self, directory: Path, chat_template: str | None) -> None:
        found = tensors.named_tensors(self.trainer.policy.model)
        export.export_hf(found, directory, self.model_directory, self.ranks, chat_template)

    def save(self, folder: Path, background: bool) -> Future[None]:
        from reroll.training import checkpoint  # most of a second of imports that a run without one is spared

        return checkpoint.save(self.trainer, folder, background)

    def restore(self, folder: Path, version: int) -> None:
        self.sender.drop()
        from reroll.training import checkpoint

        try:
            checkpoint.restore(self.trainer, folder, version)
        except OSError as error:
            raise TrainingError(
                f"{folder} cannot be read: {error}; if the run that made it has deleted it since, give one that stays"
            ) from error

    def memory(self) -> dict[str, int]:
        """Bytes that this rank holds: of parameters, of optimizer state, and at most so far of the device or, on a
        CPU, of the process."""
        state = [value for values in self.trainer.optimizer.state.values() for value in values.values()]
        return {
            "parameters": sum(tensors.local(tensor).nbytes for tensor in self.trainer.policy.parameters()),
            "optimizer": sum(tensors.local(tensor).nbytes for tensor in state),
            "peak": _peak_bytes(self.ranks.device),
        }


def _give_freed_memory_back() -> None:
    """Has the C library (glibc) map every large tensor by itself. By default it keeps what is freed, in pieces between
    which others lie: parameters that are gathered layer by layer then leave the size of several whole models behind."""
    mmap_threshold = -3
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(mmap_threshold, 1024**2)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _has_dropout(policy: Policy) -> bool:
    """Whether anything is dropped in training: by a module, or by an attention, whose rate is in the configuration."""
    rates = [module.p for module in policy.modules() if isinstance(module, torch.nn.Dropout)]
    settings = policy.model.config.get_text_config().to_dict()
    rates += [value for name, value in settings.items() if "dropout" in name or name.endswith("pdrop")]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _make_correction(given: tuple[str, Mapping[str, Any]] | None) -> Any:
    if given is None:
        return None
    cls: Any = load_target(given[0])
    return cls(cls.Config(**given[1]))
