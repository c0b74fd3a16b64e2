"""How a collection is cut: into optimizer steps, over trainer ranks, into micro-batches. No torch: the controller cuts,
so that each rank is sent what it trains on and nothing else."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from reroll.api import Sample
from reroll.traces.samples import optimizer_steps

SMALL_BATCH = 512
"""Tokens below which a padded micro-batch takes rows whatever their padding."""


@dataclass(frozen=True)
class StepTotals:
    """What the whole optimizer step holds, over all micro-batches and ranks: the denominators.

    Attributes:
        responses, tokens: that carry loss.
    """

    responses: int
    tokens: int


@dataclass(frozen=True)
class MicroBatchRule:
    """How many samples share one forward pass.

    Attributes:
        max_tokens: bound on a micro-batch's tokens, padded ones included; a longer sequence gets one of its own.
        rows: instead, a fixed number of sequences, in the order given.
        packed: sequences lie end to end in one row, so that nothing is padded.
    """

    max_tokens: int | None
    rows: int | None = None
    packed: bool = False


@dataclass(frozen=True)
class RankStep:
    """One rank's part of one optimizer step.

    Attributes:
        micro_batches: indices into `samples`. Equally many on every rank, since each forward pass is one of all
            ranks; an empty one is a pass without samples.
        totals: of the whole step.
    """

    samples: list[Sample]
    micro_batches: list[list[int]]
    totals: StepTotals


def cut_collection(
    samples: Sequence[Sample], global_batch_size: int, ranks: int, rule: MicroBatchRule
) -> list[list[RankStep]]:
    """Each rank's steps. Steps without a token that carries loss are left out, and so are such samples."""
    steps = optimizer_steps([sample for sample in samples if any(sample.loss_mask[1:])], global_batch_size)
    cut = [cut_step(step, ranks, rule) for step in steps]
    return [[step[rank] for step in cut] for rank in range(ranks)]


def cut_step(samples: Sequence[Sample], ranks: int, rule: MicroBatchRule) -> list[RankStep]:
    """Each rank's part of one optimizer step, about equally many tokens each."""
    totals = step_totals(samples)
    shares = [[samples[index] for index in share] for share in spread([len(s.token_ids) for s in samples], ranks)]
    cuts = [cut([len(sample.token_ids) for sample in share], rule) for share in shares]
    passes = max(map(len, cuts))
    return [
        RankStep(share, micro_batches + [[]] * (passes - len(micro_batches)), totals)
        for share, micro_batches in zip(shares, cuts, strict=True)
    ]


def step_totals(samples: Sequence[Sample]) -> StepTotals:
    """The denominators of a step: what carries loss. The first token of a sequence is never predicted."""
    counts = [sum(sample.loss_mask[1:]) for sample in samples]
    return StepTotals(responses=sum(count > 0 for count in counts), tokens=sum(counts))


def spread(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, in ascending order: the longest first, always to the rank with the fewest tokens."""
    if ranks == 1:
        return [list(range(len(lengths)))]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + lengths[index], rank))
    return [sorted(share) for share in shares]


def cut(lengths: Sequence[int], rule: MicroBatchRule) -> list[list[int]]:
    """Indices of each micro-batch. By tokens they are sorted by length, longest first, so that sequences which are
    padded to one length, or attended to together, are about equally long."""
    if rule.rows is not None:
        return [list(range(start, min(start + rule.rows, len(lengths)))) for start in range(0, len(lengths), rule.rows)]
    assert rule.max_tokens is not None
    batches: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and _fits(lengths, batches[-1], tokens, index, rule):
            batches[-1].append(index)
            tokens += lengths[index]
        else:
            batches.append([index])
            tokens = lengths[index]
    return batches


def _fits(lengths: Sequence[int], batch: Sequence[int], tokens: int, index: int, rule: MicroBatchRule) -> bool:
    assert rule.max_tokens is not None
    real = tokens + lengths[index]
    if rule.packed:
        return real <= rule.max_tokens
    padded = lengths[batch[0]] * (len(batch) + 1)
    # Short rows beside a long one cost as much as it does: past a quarter of padding a new batch is cheaper,
    # unless the batch is so small that a forward pass of its own would not pay.
    wasteful = padded - real > padded / 4 and tokens >= SMALL_BATCH
    return padded <= rule.max_tokens and not wasteful
