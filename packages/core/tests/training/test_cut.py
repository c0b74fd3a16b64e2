"""The cut of a collection into steps, ranks and micro-batches."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Sample
from reroll.training.batching import micro_batch
from reroll.training.cut import MicroBatchRule, cut, cut_collection, spread, step_totals

LENGTHS = st.lists(st.integers(2, 300), max_size=40)
RULES = st.one_of(
    st.builds(MicroBatchRule, st.integers(2, 2000), st.none(), st.booleans()),
    st.builds(MicroBatchRule, st.none(), st.integers(1, 9), st.booleans()),
)


def sample_of(length, slot, active=True):
    draw = random.Random(slot)
    mask = [False] + [active and draw.random() < 0.7 for _ in range(length - 1)]
    return Sample([draw.randrange(64) for _ in mask], mask, [-1.0 if on else 0.0 for on in mask], 1.0, 0.0, 0, 0, slot)


@given(lengths=LENGTHS, rule=RULES)
def test_a_cut_holds_everything_once_within_its_budget(lengths, rule):
    batches = cut(lengths, rule)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(batches)
    for batch in batches:
        found = [lengths[index] for index in batch]
        if rule.rows is not None:
            assert len(batch) <= rule.rows
        elif len(batch) > 1:
            assert (sum(found) if rule.packed else max(found) * len(batch)) <= rule.max_tokens


@given(lengths=LENGTHS, tokens=st.integers(2, 2000))
def test_a_packed_cut_makes_no_needless_passes(lengths, tokens):
    """Neighbours never fit into one batch."""
    batches = cut(lengths, MicroBatchRule(tokens, packed=True))
    for one, other in pairwise(batches):
        assert sum(lengths[index] for index in one) + lengths[other[0]] > tokens


@given(lengths=LENGTHS, ranks=st.integers(1, 9))
def test_loads_differ_by_the_longest_sample_at_most(lengths, ranks):
    shares = spread(lengths, ranks)
    assert len(shares) == ranks
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert all(share == sorted(share) for share in shares)


def test_tokens_are_spread_not_samples():
    assert spread([10, 10, 50, 10, 10, 10], 2) == [[2], [0, 1, 3, 4, 5]]


@given(
    lengths=LENGTHS,
    silent=st.sets(st.integers(0, 39)),
    ranks=st.integers(1, 5),
    rule=RULES,
    size=st.integers(1, 20),
)
def test_a_collection_is_whole_on_its_ranks(lengths, silent, ranks, rule, size):
    samples = [sample_of(length, slot, slot not in silent) for slot, length in enumerate(lengths)]
    active = [sample for sample in samples if any(sample.loss_mask)]
    cuts = cut_collection(samples, size, ranks, rule)
    assert len(cuts) == ranks
    assert len({len(steps) for steps in cuts}) == 1
    slots = []
    for parts in zip(*cuts, strict=True):
        passes = {len(part.micro_batches) for part in parts}
        assert len(passes) == 1, "every rank takes part in every pass"
        assert passes.pop() > 0
        held = [part.samples[i] for part in parts for batch in part.micro_batches for i in batch]
        assert len({sample.slot // size for sample in held}) == 1
        assert {part.totals for part in parts} == {step_totals(held)}
        assert parts[0].totals.responses == len(held)
        assert parts[0].totals.tokens == sum(sum(sample.loss_mask) for sample in held)
        assert sum(len(part.samples) for part in parts) == len(held)
        # The order on one rank is that of the collection, whatever the number of ranks.
        assert all([s.slot for s in part.samples] == sorted(s.slot for s in part.samples) for part in parts)
        slots.append(sorted(sample.slot for sample in held))
    assert sorted(slot for step in slots for slot in step) == [sample.slot for sample in active]
    assert [step[0] // size for step in slots] == sorted({sample.slot // size for sample in active})


@pytest.mark.parametrize("packed", [False, True])
@given(lengths=st.lists(st.integers(2, 30), max_size=6))
def test_a_micro_batch_holds_its_samples(packed, lengths):
    samples = [sample_of(length, slot) for slot, length in enumerate(lengths)]
    batch = micro_batch(samples, packed)
    rows, columns = batch.row_N.tolist(), batch.position_N.tolist()
    expected = [
        (number, token)
        for number, sample in enumerate(samples)
        for token, on in zip(sample.token_ids, sample.loss_mask, strict=True)
        if on
    ]
    assert list(zip(batch.response_N.tolist(), batch.target_N.tolist(), strict=True)) == expected
    assert batch.token_ids_RT[rows, columns].tolist() == batch.target_N.tolist()
    # What predicts a token stands in its own sequence.
    before = [(row, column - 1) for row, column in zip(rows, columns, strict=True)]
    assert all(
        batch.position_ids_RT[row, column] == batch.position_ids_RT[row, column + 1] - 1 for row, column in before
    )
    width = max(lengths, default=2)
    assert batch.padding == (0 if packed or not lengths else width * len(lengths) - sum(lengths))
    assert (batch.attention_RT is None) == (batch.padding == 0)
    if batch.attention_RT is not None:
        assert batch.attention_RT.sum(1).tolist() == lengths
