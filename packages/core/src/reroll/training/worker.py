"""The trainer's process: the model, the optimizer, and the files that it writes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from reroll.api import Sample, WeightBucket
from reroll.models.digest import state_digest
from reroll.models.load import load_model
from reroll.training.batching import micro_batches, step_totals
from reroll.training.logprobs import PolicyHead, token_logprobs
from reroll.training.objective import Recipe
from reroll.training.step import PolicyTrainer, StepSettings
from reroll.workers.serve import load_target


class TrainerWorker:
    """What the controller calls; see `trainer.Trainer` for the calls' meaning.

    Args:
        model_directory: the starting checkpoint.
        temperature: of the rollouts; logits are divided by it.
        recipe, settings: keyword arguments of `Recipe` and `StepSettings`.
        correction: class path and options of the off-policy correction, None for none.
        use_reference: keep a frozen copy of the starting checkpoint.
    """

    def __init__(
        self,
        model_directory: Path,
        temperature: float,
        recipe: Mapping[str, Any],
        settings: Mapping[str, Any],
        correction: tuple[str, Mapping[str, Any]] | None,
        use_reference: bool,
        seed: int,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True)
        # Every result is written before it is read; filling fresh memory would only cost time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.model_directory = model_directory
        model = load_model(model_directory)
        reference = copy.deepcopy(model).requires_grad_(False) if use_reference else None
        self.trainer = PolicyTrainer(
            model=model,
            reference=reference,
            temperature=temperature,
            recipe=Recipe(**recipe),
            correction=_make_correction(correction),
            settings=StepSettings(**settings),
        )

    def train(self, samples: list[Sample]) -> list[dict[str, float]]:
        return self.trainer.train_collection(samples)

    def version(self) -> int:
        return self.trainer.version

    def logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """Current log-probability of each token that carries loss, by sample."""
        return self._logprobs(self.trainer.model, self.trainer.head, samples)

    def reference_logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """The same of the frozen copy of the starting checkpoint."""
        assert self.trainer.reference_head is not None, "the recipe keeps no reference"
        return self._logprobs(self.trainer.reference, self.trainer.reference_head, samples)

    def _logprobs(self, model: Any, head: PolicyHead, samples: list[Sample]) -> list[list[float]]:
        settings = self.trainer.settings
        found: list[list[float]] = [[] for _ in samples]
        with torch.no_grad():
            for batch in micro_batches(samples, settings.max_tokens, settings.rows):
                logprobs_N, _ = token_logprobs(model, head, batch)
                for row, value in zip(batch.row_N.tolist(), logprobs_N.tolist(), strict=True):
                    found[batch.order[row]].append(value)
        return found

    def gradient_digest(self, samples: list[Sample]) -> str:
        """SHA-256 of the gradient that the samples, as one step, would have; nothing is changed."""
        trainer = self.trainer
        trainer.model.zero_grad(set_to_none=True)
        batches = micro_batches(samples, trainer.settings.max_tokens, trainer.settings.rows)
        trainer.accumulate_gradients(batches, step_totals(samples), None)
        digest = state_digest((name, p.grad) for name, p in trainer.model.named_parameters() if p.grad is not None)
        trainer.model.zero_grad(set_to_none=True)
        return digest

    def weights_digest(self) -> str:
        return state_digest(self.trainer.model.state_dict().items())

    def export_weights(self, directory: Path, bucket_bytes: int) -> list[WeightBucket]:
        """Writes every tensor once, in files of about `bucket_bytes`; a larger tensor has a file of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        buckets: list[WeightBucket] = []
        for tensors in _split(published_tensors(self.trainer.model), bucket_bytes):
            path = directory / f"bucket-{len(buckets):05}.safetensors"
            save_file(tensors, path)
            size = sum(tensor.nbytes for tensor in tensors.values())
            buckets.append(WeightBucket(str(path), tuple(tensors), size))
        return buckets

    def export_hf(self, directory: Path) -> None:
        """Writes a Hugging Face directory: weights, configuration, and the starting checkpoint's tokenizer files."""
        partial = directory.with_name(f"{directory.name}.partial")
        self.trainer.model.save_pretrained(partial)
        for path in self.model_directory.iterdir():
            if path.name.startswith(("tokenizer", "chat_template", "special_tokens", "vocab", "merges")):
                (partial / path.name).write_bytes(path.read_bytes())
        partial.rename(directory)  # a folder of that name is a whole model


def published_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and persistent buffer by name; a tied tensor appears once."""
    seen: set[int] = set()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            found[name] = tensor.detach().contiguous()
    return found


def _split(tensors: Mapping[str, torch.Tensor], bucket_bytes: int) -> list[dict[str, torch.Tensor]]:
    buckets: list[dict[str, torch.Tensor]] = []
    room = 0
    for name, tensor in tensors.items():
        if not buckets or tensor.nbytes > room:
            buckets.append({})
            room = bucket_bytes
        buckets[-1][name] = tensor
        room -= tensor.nbytes
    return buckets


def _make_correction(given: tuple[str, Mapping[str, Any]] | None) -> Any:
    if given is None:
        return None
    cls: Any = load_target(given[0])
    return cls(cls.Config(**given[1]))
