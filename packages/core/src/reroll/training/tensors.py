"""A model's tensors under their names, whole or in shards, and how they leave the trainer.

Sharded ones are gathered bucket by bucket, so that no rank ever holds the whole model; every rank calls these
functions, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from reroll.api import WeightBucket
from reroll.training.ranks import Ranks


def local(tensor: Any) -> Tensor:
    """This rank's shard; a tensor that is not sharded as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def whole(tensor: Any) -> Tensor:
    """The tensor from all ranks, which all ask for it at once."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every element is. Sums tell it in one pass over memory and one wait for the device; only where one is
    not finite, which a sum of finite numbers may be as well, is every element looked at."""
    sums = torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors])
    return bool(sums.isfinite().all()) or all(bool(tensor.isfinite().all()) for tensor in tensors)


def named_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer by name; a tied tensor appears once."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def num_bytes(tensor: Tensor) -> int:
    """Of the whole tensor, sharded or not."""
    return tensor.numel() * tensor.element_size()


def buckets(tensors: Mapping[str, Tensor], bucket_bytes: int) -> list[list[str]]:
    """The names in order, in groups of at most `bucket_bytes`; a larger tensor has a group of its own."""
    found: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        size = num_bytes(tensor)
        if not found or size > room:
            found.append([])
            room = bucket_bytes
        found[-1].append(name)
        room -= size
    return found


def write_buckets(
    tensors: Mapping[str, Tensor], names: Sequence[Sequence[str]], paths: Sequence[Path], ranks: Ranks
) -> None:
    """Gathers one bucket after the other; the ranks take turns in writing them."""
    for number, (bucket, path) in enumerate(zip(names, paths, strict=True)):
        mine = number % ranks.size == ranks.rank
        kept: dict[str, Tensor] = {}
        for name in bucket:
            tensor = whole(tensors[name])
            if mine:
                kept[name] = tensor.contiguous().cpu()
        if mine:
            save_file(kept, path, metadata={"format": "pt"})


def export_weights(model: torch.nn.Module, directory: Path, bucket_bytes: int, ranks: Ranks) -> list[WeightBucket]:
    """Writes every tensor once, in files of about `bucket_bytes`, for engines to read."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = named_tensors(model)
    names = buckets(tensors, bucket_bytes)
    paths = [directory / f"bucket-{number:05}.safetensors" for number in range(len(names))]
    write_buckets(tensors, names, paths, ranks)
    return [
        WeightBucket(str(path), tuple(bucket), sum(num_bytes(tensors[name]) for name in bucket))
        for path, bucket in zip(paths, names, strict=True)
    ]
