"""Off-policy corrections against ratios written out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.training.corrections import (
    IcePop,
    MaskedImportanceSampling,
    NoCorrection,
    TruncatedImportanceSampling,
)
from reroll.training.ratios import response_means, response_sums

RESPONSE = torch.tensor([0, 0, 1, 1, 1])
LOG_RATIOS = torch.tensor([math.log(2.0), math.log(0.5), math.log(1.5), math.log(1.5), math.log(1.5)])


def mis(**options):
    return MaskedImportanceSampling(MaskedImportanceSampling.Config(**options))


def icepop(**options):
    return IcePop(IcePop.Config(**options))


def weights_of(correction, log_ratios=LOG_RATIOS, response=RESPONSE):
    """The trainer's log-probabilities are -1, the engine's follow from the ratios."""
    old = torch.full_like(log_ratios, -1.0)
    return correction.weights(old, old - log_ratios, response).tolist()


def test_icepop_keeps_the_ratio_inside_its_band_and_drops_tokens_outside():
    ratios = torch.tensor([0.4, 0.6, 1.0, 4.9, 5.1]).log()
    assert weights_of(icepop(), ratios) == pytest.approx([0.0, 0.6, 1.0, 4.9, 0.0])
    assert weights_of(icepop(icepop_low=0.1, icepop_high=1.5), ratios) == pytest.approx([0.4, 0.6, 1.0, 0.0, 0.0])


def test_mis_takes_its_weight_over_tokens_responses_or_their_geometric_mean():
    wide = {"mode": "truncate", "mis_clip": 100.0}
    assert weights_of(mis(level="token", **wide)) == pytest.approx([2.0, 0.5, 1.5, 1.5, 1.5])
    assert weights_of(mis(level="sequence", **wide)) == pytest.approx([1.0, 1.0, 3.375, 3.375, 3.375])
    assert weights_of(mis(level="geometric", **wide)) == pytest.approx([1.0, 1.0, 1.5, 1.5, 1.5])


def test_mis_truncates_to_the_bounds_or_drops_whole_responses():
    assert weights_of(mis(mode="truncate")) == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0])
    assert weights_of(mis(mode="mask")) == pytest.approx([1.0, 1.0, 0.0, 0.0, 0.0])
    assert weights_of(mis()) == weights_of(mis(level="sequence", mode="mask", mis_clip=2.0))
    low = {"level": "token", "mis_clip": 1.6, "mis_clip_low": 0.7}
    assert weights_of(mis(mode="truncate", **low)) == pytest.approx([1.6, 0.7, 1.5, 1.5, 1.5])
    assert weights_of(mis(mode="mask", **low)) == pytest.approx([0.0, 0.0, 1.5, 1.5, 1.5])


@pytest.mark.parametrize("correction", [icepop(), mis(), mis(level="token"), mis(level="geometric", mode="truncate")])
def test_extreme_ratios_stay_finite(correction):
    extreme = torch.tensor([300.0, 300.0, -300.0, -300.0, -300.0])
    assert all(map(math.isfinite, weights_of(correction, extreme)))


def test_the_sum_over_a_response_is_what_is_clamped():
    """Two tokens that cancel have weight 1, however large each ratio is."""
    log_ratios, response = torch.tensor([30.0, -30.0]), torch.tensor([0, 0])
    assert weights_of(mis(), log_ratios, response) == [1.0, 1.0]
    assert weights_of(mis(level="token", mode="truncate"), log_ratios, response) == pytest.approx([2.0, 0.0], abs=1e-8)


log_ratio = st.floats(-3, 3, width=32)
ragged = st.lists(st.lists(log_ratio, min_size=1, max_size=5), min_size=1, max_size=5)


@given(ragged, st.sampled_from(["token", "sequence", "geometric"]), st.sampled_from(["truncate", "mask"]))
def test_a_response_has_the_same_weights_alone_and_beside_others(responses, level, mode):
    correction = mis(level=level, mode=mode, mis_clip=1.5, mis_clip_low=0.5)
    flat = torch.tensor([value for values in responses for value in values])
    index = torch.tensor([number for number, values in enumerate(responses) for _ in values])
    together = weights_of(correction, flat, index)
    alone = [
        weight
        for values in responses
        for weight in weights_of(correction, torch.tensor(values), torch.zeros(len(values), dtype=torch.long))
    ]
    assert together == alone
    for weight in together:
        assert 0.5 <= weight <= 1.5 or (mode == "mask" and weight == 0.0)


@given(ragged)
def test_sums_and_means_of_responses(responses):
    values = torch.tensor([value for each in responses for value in each], dtype=torch.float64)
    index = torch.tensor([number for number, each in enumerate(responses) for _ in each])
    sums = [math.fsum(each) for each in responses for _ in each]
    means = [math.fsum(each) / len(each) for each in responses for _ in each]
    assert response_sums(values, index).tolist() == pytest.approx(sums, abs=1e-9)
    assert response_means(values, index).tolist() == pytest.approx(means, abs=1e-9)


def test_rows_without_a_token_and_no_tokens_at_all_are_no_trouble():
    assert weights_of(mis(level="geometric"), torch.zeros(2), torch.tensor([0, 3])) == [1.0, 1.0]
    for correction in (NoCorrection(), TruncatedImportanceSampling(), icepop(), mis(), mis(level="geometric")):
        assert weights_of(correction, torch.zeros(0), torch.zeros(0, dtype=torch.long)) == []


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (TruncatedImportanceSampling, {"tis_clip": 1.0, "tis_clip_low": 1.5}, "tis_clip_low = 1.5 is above tis_clip"),
        (IcePop, {"icepop_low": 6.0}, "icepop_low = 6.0 is above icepop_high = 5.0"),
        (IcePop, {"icepop_low": 1.1}, "leave out 1.*either side of 1"),
        (IcePop, {"icepop_high": 0.9}, "leave out 1"),
        (IcePop, {"icepop_high": 1e9}, "icepop_high = 1000000000.0 is never reached"),
        (MaskedImportanceSampling, {"mis_clip": 0.5}, "leave out 1"),
        (MaskedImportanceSampling, {"mis_clip_low": 3.0}, "mis_clip_low = 3.0 is above mis_clip = 2.0"),
        (MaskedImportanceSampling, {"mis_clip_low": 1e-10}, "never reached.*0 switches it off"),
        (MaskedImportanceSampling, {"level": "turn"}, "'token', 'sequence' or 'geometric'"),
        (MaskedImportanceSampling, {"tis_clip": 2.0}, "Extra inputs"),
    ],
)
def test_options_that_contradict_each_other_or_do_nothing_are_refused(cls, options, message):
    with pytest.raises(ValidationError, match=message):
        cls.Config(**options)


def test_truncation_may_scale_every_weight_down():
    assert weights_of(mis(level="token", mode="truncate", mis_clip=0.5)) == [0.5] * 5
