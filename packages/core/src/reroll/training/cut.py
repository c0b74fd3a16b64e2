"""How a collection is cut: into optimizer steps, over trainer ranks, into micro-batches. No torch: the controller cuts,
so that each rank is sent what it trains on and nothing else."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from reroll.api import Sample
from reroll.traces.samples import optimizer_steps

CPU_PASS_TOKENS = 128
CUDA_PASS_TOKENS = 2048
"""Tokens that cost as much as a forward and backward pass does beside its tokens. On a core that is about 110 for a
model of 0.4 M parameters and fewer for larger ones; on a GPU it is an estimate, for a model of 0.5 B."""


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
        pass_tokens: what a pass costs beside its tokens, in tokens: so much padding is worth saving one.
    """

    max_tokens: int | None
    rows: int | None = None
    packed: bool = False
    pass_tokens: int = CPU_PASS_TOKENS


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


def pass_tokens(device: str) -> int:
    """Of a rule for padded rows, on a device as torch names it."""
    return CPU_PASS_TOKENS if device == "cpu" else CUDA_PASS_TOKENS


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
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    sizes = [lengths[index] for index in order]
    ends = _packed_ends(sizes, rule.max_tokens) if rule.packed else _padded_ends(sizes, rule)
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _packed_ends(sizes: Sequence[int], max_tokens: int) -> list[int]:
    """Where each micro-batch ends: as late as the budget allows."""
    ends: list[int] = []
    tokens = 0
    for place, size in enumerate(sizes):
        if place and tokens + size > max_tokens:
            ends.append(place)
            tokens = 0
        tokens += size
    return [*ends, len(sizes)] if sizes else []


def _padded_ends(sizes: Sequence[int], rule: MicroBatchRule) -> list[int]:
    """Where each micro-batch ends, so that padded tokens and passes together cost least. By dynamic programming over
    rows from the longest to the shortest: `cost[end] = min over start of cost[start] + rows·longest + pass_tokens`."""
    assert rule.max_tokens is not None
    count = len(sizes)
    cost, before = [0.0] + [float("inf")] * count, [0] * (count + 1)
    for start, longest in enumerate(sizes):
        so_far = cost[start] + rule.pass_tokens
        # Beside a row that is longer by more than a pass costs, a row is never cheaper than in a pass of its own.
        shortest, most = longest - rule.pass_tokens, max(1, rule.max_tokens // longest)
        for end in range(start + 1, min(start + most, count) + 1):
            if sizes[end - 1] < shortest:
                break
            so_far += longest
            if so_far < cost[end]:
                cost[end], before[end] = so_far, start
    ends = []
    while count:
        ends.append(count)
        count = before[count]
    return ends[::-1]
