"""Samples → the tensors of a micro-batch, padded or packed.

Shapes: R rows, T tokens of a row, N tokens that carry loss. Padded, a row is one sequence; packed, the only row holds
all of them end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reroll.api import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Sequences of one forward pass. A token at position t is predicted from position t - 1.

    Attributes:
        token_ids_RT, position_ids_RT: what the model reads; positions count from 0 in every sequence.
        attention_RT: 1 where a token stands, 0 where a row is padded; None where nothing is padded.
        lengths: of the sequences of a packed row; None for padded rows.
        row_N, position_N: where each token that carries loss stands.
        response_N: the sequence that it belongs to, counted from 0.
        target_N, rollout_logprobs_N, advantages_N: of those tokens.
        responses: number of sequences.
        tokens: without padding.
    """

    token_ids_RT: Tensor
    position_ids_RT: Tensor
    attention_RT: Tensor | None
    lengths: tuple[int, ...] | None
    row_N: Tensor
    position_N: Tensor
    response_N: Tensor
    target_N: Tensor
    rollout_logprobs_N: Tensor
    advantages_N: Tensor
    responses: int
    tokens: int

    @property
    def padding(self) -> int:
        """Padded positions."""
        return self.token_ids_RT.numel() - self.tokens


def micro_batch(samples: Sequence[Sample], packed: bool, device: torch.device | str = "cpu") -> MicroBatch:
    """The tensors of these samples. Rows are padded on the right with token 0, which attention never sees. Without
    samples: a pass of two tokens of which none carries loss."""
    lengths = [len(sample.token_ids) for sample in samples]
    if not samples:
        lengths, packed = [2], False
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    rows, width = (1, sum(lengths)) if packed else (len(lengths), max(lengths))
    token_ids_RT = torch.zeros(rows, width, dtype=torch.long)
    position_ids_RT = torch.arange(width).repeat(rows, 1)
    row: list[int] = []
    position: list[int] = []
    response: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    for number, sample in enumerate(samples):
        at, start, size = (0, starts[number], lengths[number]) if packed else (number, 0, lengths[number])
        token_ids_RT[at, start : start + size] = torch.tensor(sample.token_ids)
        position_ids_RT[at, start : start + size] = torch.arange(size)
        active = [place for place in range(1, size) if sample.loss_mask[place]]
        row += [at] * len(active)
        position += [start + place for place in active]
        response += [number] * len(active)
        logprobs += [sample.rollout_logprobs[place] for place in active]
        advantages += [sample.advantage] * len(active)
    tokens = sum(lengths)
    row_N, position_N = torch.tensor(row, dtype=torch.long), torch.tensor(position, dtype=torch.long)
    return MicroBatch(
        token_ids_RT=token_ids_RT.to(device),
        position_ids_RT=position_ids_RT.to(device),
        attention_RT=None if tokens == rows * width else _attention(lengths, width).to(device),
        lengths=tuple(lengths) if packed else None,
        row_N=row_N.to(device),
        position_N=position_N.to(device),
        response_N=torch.tensor(response, dtype=torch.long).to(device),
        target_N=token_ids_RT[row_N, position_N].to(device),
        rollout_logprobs_N=torch.tensor(logprobs, dtype=torch.float32).to(device),
        advantages_N=torch.tensor(advantages, dtype=torch.float32).to(device),
        responses=len(samples),
        tokens=tokens,
    )


def _attention(lengths: Sequence[int], width: int) -> Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
