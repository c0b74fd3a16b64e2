"""Samples → padded micro-batches. Shapes: R rows, T tokens of the longest row, N tokens that carry loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reroll.api import Sample
from reroll.training.objective import StepTotals

SMALL_BATCH = 512
"""Tokens below which a micro-batch takes rows whatever their padding."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows of right-padded sequences. A token at position t is predicted from position t - 1.

    Attributes:
        token_ids_RT, attention_RT, position_ids_RT: what the model reads; `position_ids_RT` counts from 0.
        row_N, position_N: where each token that carries loss stands.
        target_N, rollout_logprobs_N, advantages_N: of those tokens.
        order: the rows' places in the list that the batch was cut from.
    """

    token_ids_RT: Tensor
    attention_RT: Tensor
    position_ids_RT: Tensor
    row_N: Tensor
    position_N: Tensor
    target_N: Tensor
    rollout_logprobs_N: Tensor
    advantages_N: Tensor
    order: list[int]

    @property
    def rows(self) -> int:
        return len(self.order)

    @property
    def padding(self) -> int:
        """Padded positions."""
        return int(self.attention_RT.numel() - self.attention_RT.sum())


def step_totals(samples: Sequence[Sample]) -> StepTotals:
    """The denominators of a step: what carries loss. The first token of a sequence is never predicted, so it never
    counts."""
    lengths = [sum(sample.loss_mask[1:]) for sample in samples]
    return StepTotals(responses=sum(length > 0 for length in lengths), tokens=sum(lengths))


def cut(lengths: Sequence[int], max_tokens: int | None, rows: int | None) -> list[list[int]]:
    """Indices of each micro-batch: sorted by length, longest first, so that rows of a batch need little padding.

    Args:
        max_tokens: bound on rows × longest row; a longer sequence gets a micro-batch of its own.
        rows: instead, a fixed number of rows, in the order given.
    """
    if rows is not None:
        return [list(range(start, min(start + rows, len(lengths)))) for start in range(0, len(lengths), rows)]
    assert max_tokens is not None
    batches: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[batches[-1][0]] if batches else 0
        padded = longest * (len(batches[-1]) + 1) if batches else 0
        real = tokens + lengths[index]
        # Short rows beside a long one cost as much as it does: past a quarter of padding a new batch is cheaper,
        # unless the batch is so small that a forward pass of its own would not pay.
        wasteful = padded - real > padded / 4 and tokens >= SMALL_BATCH
        if batches and padded <= max_tokens and not wasteful:
            batches[-1].append(index)
            tokens = real
        else:
            batches.append([index])
            tokens = lengths[index]
    return batches


def micro_batches(samples: Sequence[Sample], max_tokens: int | None, rows: int | None = None) -> list[MicroBatch]:
    """The samples as micro-batches; see `cut`."""
    lengths = [len(sample.token_ids) for sample in samples]
    return [pad([samples[index] for index in order], order) for order in cut(lengths, max_tokens, rows)]


def pad(samples: Sequence[Sample], order: list[int]) -> MicroBatch:
    """One micro-batch of these rows, padded on the right with token 0, which attention never sees."""
    length = max(len(sample.token_ids) for sample in samples)
    token_ids_RT = torch.zeros(len(samples), length, dtype=torch.long)
    attention_RT = torch.zeros(len(samples), length, dtype=torch.long)
    row: list[int] = []
    position: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    for number, sample in enumerate(samples):
        size = len(sample.token_ids)
        token_ids_RT[number, :size] = torch.tensor(sample.token_ids)
        attention_RT[number, :size] = 1
        active = [place for place in range(1, size) if sample.loss_mask[place]]
        row += [number] * len(active)
        position += active
        logprobs += [sample.rollout_logprobs[place] for place in active]
        advantages += [sample.advantage] * len(active)
    row_N, position_N = torch.tensor(row, dtype=torch.long), torch.tensor(position, dtype=torch.long)
    return MicroBatch(
        token_ids_RT=token_ids_RT,
        attention_RT=attention_RT,
        position_ids_RT=torch.arange(length).expand(len(samples), -1),
        row_N=row_N,
        position_N=position_N,
        target_N=token_ids_RT[row_N, position_N],
        rollout_logprobs_N=torch.tensor(logprobs, dtype=torch.float32),
        advantages_N=torch.tensor(advantages, dtype=torch.float32),
        order=list(order),
    )
