"""Spreading a policy over ranks with FSDP2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from reroll.models.load import load_model
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""By compute type: largest difference, absolute and relative, that counts as the same."""


def load_policy(directory: Path, temperature: float, ranks: Ranks, recompute: bool) -> Policy:
    """The policy in `directory`, whole or in this rank's shards, checked against the model's own forward.

    Args:
        recompute: activations of a block are computed again in the backward pass instead of being kept.
    """
    from reroll.models.sharded import blocks, empty_model, load_shards, materialise

    model = empty_model(directory) if ranks.sharded else load_model(directory)
    if recompute:
        for block in blocks(model):
            # Around the forward alone: a wrapper module would change the parameters' names.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    policy = Policy(model, temperature)
    if ranks.sharded:
        shard(policy, blocks(model), ranks)
        materialise(policy, ranks.device)
        load_shards(model, directory)
    policy.check_head(ranks.device, TOLERANCE[ranks.compute_type])
    return policy


def shard(policy: Policy, blocks: list[torch.nn.Module], ranks: Ranks) -> None:
    """Each block is gathered by itself, and so is the input embedding unless the head shares it; last norm and head
    together."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {
        "mesh": ranks.mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=ranks.compute_type, reduce_dtype=torch.float32),
    }
    for block in blocks:
        fully_shard(block, **options)
    embedding = policy.model.get_input_embeddings()
    if embedding.weight is not policy.head.embedding.weight and embedding not in blocks:
        fully_shard(embedding, **options)
    fully_shard(policy, **options)
