"""Attention over packed sequences: each token sees its own sequence alone, and no mask of the whole row is made.

On CUDA in half precision torch's variable-length kernel does it, where the installed torch has one; everywhere else
scaled dot-product attention is called once for each run of equally long sequences.
Shapes: H query heads, K key heads, T tokens of the row, D size of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

varlen_attn: Any
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # of torch before 2.10
    varlen_attn = None

VARLEN = "reroll_varlen"
"""The attention for packed rows, as transformers names it."""
LARGEST_HEAD = 256
"""Of the kernel."""


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return varlen_attn is not None and device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def packed_arguments(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What the model's forward is given beside tokens and positions; it hands them on to the attention."""
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
    starts = starts.to(device)
    return {
        "cu_seq_lens_q": starts,
        "max_length_q": max(lengths),
        "sequence_lengths": tuple(lengths),
    }


def varlen_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    sequence_lengths: Sequence[int] | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **unknown: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a packed row.

    Args:
        query: `[1, H, T, D]`; key, value: `[1, K, T, D]`, H a multiple of K.
        sliding_window: tokens that one sees, itself included; None for all before it.
        sequence_lengths: they add up to T; None for one sequence.
        cu_seq_lens_q, max_length_q: where sequences begin, and the longest one, as the kernel takes them.
    Returns:
        `[1, T, H, D]`, and no attention weights.
    """
    changes = [name for name in ("softcap", "s_aux", "position_bias") if unknown.get(name) is not None]
    if changes:
        raise ValueError(f"packed sequences with {', '.join(changes)} in the attention: set trainer.packing = false")
    kernel = has_varlen_kernel(query.device, query.dtype) and query.shape[-1] == value.shape[-1] <= LARGEST_HEAD
    if kernel and not dropout and cu_seq_lens_q is not None:
        window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
        out = varlen_attn(
            *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=window,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out[None], None
    lengths = sequence_lengths or (query.shape[2],)
    runs = zip(_runs(query, lengths), _runs(key, lengths), _runs(value, lengths), strict=True)
    parts = [_attend(*tensors, scaling, dropout, sliding_window) for tensors in runs]
    return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])[None], None


def _runs(tensor: Tensor, lengths: Sequence[int]) -> Iterator[Tensor]:
    """`[1, H, T, D]` → `[B, H, L, D]` for every run of B neighbours of one length L."""
    start = 0
    for length, run in groupby(lengths):
        size = length * len(list(run))
        part = tensor[0, :, start : start + size]
        yield part.reshape(part.shape[0], -1, length, part.shape[2]).transpose(0, 1)
        start += size


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, dropout: float, sliding_window: int | None
) -> Tensor:
    length = query.shape[2]
    mask = None
    if sliding_window is not None and sliding_window < length:
        ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
        mask = ones.tril() & ones.triu(1 - sliding_window)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


# No mask function goes with the name: transformers then makes no mask at all.
AttentionInterface.register(VARLEN, varlen_attention)
