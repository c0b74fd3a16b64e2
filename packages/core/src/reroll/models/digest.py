"""One number for all of a model's tensors, so that a trainer and an engine can compare theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def state_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """SHA-256, in hex, over names, types, shapes and bytes.

    Args:
        tensors: (name, tensor) pairs in any order, such as `model.state_dict().items()`: tied tensors
            count under each of their names.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        # Name, type and shape end in a zero byte, or a name could be read as part of its neighbour.
        header = f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\0"
        digest.update(header.encode())
        # Flattened before the view: a tensor without dimensions has no last one to reinterpret.
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # one at a time
        flat = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(flat.numpy()))
    return digest.hexdigest()
