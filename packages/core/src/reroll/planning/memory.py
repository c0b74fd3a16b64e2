"""What trainer ranks and engines will hold, as far as a run file and the headers of the model's files tell.

Exact, in bytes: parameters, gradients, optimizer state and the reference copy of a rank. Bounds: all else that has a
number. Not counted: what one layer keeps while it is computed, scratch space of attention and matrix products, the CUDA
context and its libraries, NCCL's buffers, what an allocator holds beyond what is in use, copies that a checkpoint or an
export makes in host memory, and the Python processes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from reroll.config import LoadedRunFile
from reroll.models.config import ModelSection
from reroll.models.files import ModelError
from reroll.models.sizes import ModelSizes, model_sizes
from reroll.rollouts.config import RolloutSection
from reroll.serving.config import ServingSection
from reroll.training.config import ObjectiveSection, TrainerSection
from reroll.training.limits import CHUNK_ELEMENTS, KEPT_ELEMENTS

FLOAT32 = 4
BACKWARD_CHUNKS = 3
"""Chunks of logits that the backward pass holds at once: log-probabilities, their gradient, and a product of both."""
GATHERED_LAYERS = 2
"""FSDP2 gathers the next layer while one is computed."""


@dataclass(frozen=True)
class Estimate:
    """What is held → bytes; None where it is not known, with the reason."""

    bytes: Mapping[str, int | None]
    because: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int | None:
        """Of what is counted; None where a part of it is not known."""
        return None if None in self.bytes.values() else sum(value or 0 for value in self.bytes.values())

    def to_json(self) -> dict[str, Any]:
        return {**self.bytes, "total": self.total, "because": dict(self.because)}


def sizes_or_reason(run: LoadedRunFile) -> tuple[ModelSizes | None, str]:
    """The model's sizes, or why its files do not tell them."""
    try:
        return model_sizes(run.get(ModelSection).path), ""
    except ModelError as error:
        return None, str(error)


def rank_memory(run: LoadedRunFile, sizes: ModelSizes | None, reason: str) -> Estimate:
    """Of trainer rank 0, which holds most."""
    objective, trainer = run.get(ObjectiveSection), run.get(TrainerSection)
    names = ("parameters", "gradients", "optimizer", "reference", "gathered", "layer_inputs", "logits", "publication")
    if sizes is None:
        return Estimate(dict.fromkeys(names), dict.fromkeys(names, reason))
    shard = FLOAT32 * sizes.largest_shard(trainer.num_ranks)
    found: dict[str, int | None] = {
        "parameters": shard,
        "gradients": shard,
        # Two moments of every element, and a step count of every tensor.
        "optimizer": 2 * shard + FLOAT32 * len(sizes.tensors),
        "reference": shard if objective.needs_reference else 0,
        "gathered": None,
        "layer_inputs": None,
        "logits": None,
        "publication": _publication(run, sizes),
    }
    because: dict[str, str] = {}
    if trainer.device == "auto":
        unknown = 'trainer.device = "auto" is decided where the ranks run'
        return Estimate(found, dict.fromkeys(("gathered", "layer_inputs", "logits"), unknown))
    width = 2 if _computes_in_bfloat16(trainer) else FLOAT32
    found["gathered"] = _gathered(trainer, sizes, width)
    tokens = _micro_batch_tokens(run)
    found["logits"] = _logits(trainer, sizes, tokens)
    if found["logits"] is None:
        because["logits"] = "the model's config.json has no vocab_size"
    recomputes = (
        trainer.device == "cuda" if trainer.activation_checkpointing is None else trainer.activation_checkpointing
    )
    if not recomputes:
        because["layer_inputs"] = (
            "without trainer.activation_checkpointing a layer keeps what its architecture wants in the backward pass"
        )
    elif sizes.layers is None or sizes.hidden is None:
        because["layer_inputs"] = "the model's config.json has no num_hidden_layers or hidden_size"
    else:
        found["layer_inputs"] = (sizes.layers + 1) * tokens * sizes.hidden * width
    return Estimate(found, because)


def _computes_in_bfloat16(trainer: TrainerSection) -> bool:
    if trainer.compute_dtype == "auto":
        return trainer.device == "cuda"
    return trainer.compute_dtype == "bfloat16"


def _gathered(trainer: TrainerSection, sizes: ModelSizes, width: int) -> int:
    """Parameters of layers that are whole for a while, and a layer's gradient; 0 for a rank that shards nothing."""
    if trainer.num_ranks == 1 and trainer.device == "cpu" and width == FLOAT32:
        return 0
    layer, others = sizes.units()
    return width * ((GATHERED_LAYERS + 1) * layer + 2 * others)


def _micro_batch_tokens(run: LoadedRunFile) -> int:
    """Most tokens of a forward pass, padded ones included: a longer sequence than the budget has a pass of its own."""
    trainer = run.get(TrainerSection)
    longest = trainer.max_sequence_length or run.get(RolloutSection).max_context
    if trainer.micro_batch_tokens is None:
        return (trainer.micro_batch_size or 1) * longest
    return max(trainer.micro_batch_tokens, longest)


def _logits(trainer: TrainerSection, sizes: ModelSizes, tokens: int) -> int | None:
    """In float32: those of the micro-batch that are kept for the backward pass, and the chunks that are worked on."""
    if sizes.vocabulary is None:
        return None
    elements = tokens * sizes.vocabulary
    kept = elements if elements <= KEPT_ELEMENTS[trainer.device] else 0
    chunk = min(elements, max(sizes.vocabulary, CHUNK_ELEMENTS[trainer.device]))
    return FLOAT32 * (kept + BACKWARD_CHUNKS * chunk)


def _publication(run: LoadedRunFile, sizes: ModelSizes) -> int:
    """A bucket of whole tensors, of which one may be larger than the bound."""
    transport = run.get(ServingSection).transport
    config: Any = run.component("transports", transport.name).Config(**transport.options)
    largest = max((FLOAT32 * prod(shape) for shape in sizes.tensors.values()), default=0)
    bound: int | None = getattr(config, "update_weight_buffer_size", None)
    return min(FLOAT32 * sizes.parameters, max(bound or 0, largest))
