"""Advantages by hand, and what holds of every estimator."""

import itertools
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import PluginError
from reroll.plugins import load_plugins
from reroll.traces.samples import batch_advantages
from reroll.training.advantages import DrGrpo, Grpo, ReinforcePlusPlusBaseline, Rloo

ESTIMATORS = [Grpo(), Grpo(Grpo.Config(grpo_std_normalization=True)), DrGrpo(), Rloo(), ReinforcePlusPlusBaseline()]
reward = st.floats(-10, 10, width=32)
groups_of_rewards = st.lists(st.lists(reward, min_size=1, max_size=6), min_size=1, max_size=5)


def test_every_built_in_estimator_is_tested_here():
    built_in = [given.cls for given in load_plugins().all("advantages").values() if given.distribution == "reroll"]
    assert {type(estimator) for estimator in ESTIMATORS} == set(built_in)


def test_equal_rewards_have_exactly_no_advantage():
    for estimator in ESTIMATORS:
        assert estimator.advantages([0.1] * 7) == [0.0] * 7
        assert estimator.advantages([0.3]) == [0.0]
        assert estimator.batch([[0.1] * 7, [0.0, 1.0]])[0] == [0.0] * 7


def test_std_normalisation_is_the_unbiased_one():
    grpo = Grpo(Grpo.Config(grpo_std_normalization=True))
    assert grpo.advantages([0.0, 1.0]) == pytest.approx([-0.5 / (0.5**0.5 + 1e-6), 0.5 / (0.5**0.5 + 1e-6)])


def test_rloo_compares_each_response_with_the_others():
    assert Rloo().advantages([1.0, 0.0, 0.0, 0.5]) == pytest.approx([1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3])


def test_dr_grpo_does_not_divide_by_anything_but_asks_for_a_constant_length():
    assert DrGrpo().advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    assert DrGrpo.constant_length
    assert not any(cls.constant_length for cls in (Grpo, Rloo, ReinforcePlusPlusBaseline))


def test_reinforce_plus_plus_divides_by_the_deviation_of_the_whole_batch():
    found = ReinforcePlusPlusBaseline().batch([[0.0, 2.0], [1.0, 1.0], [5.0, 5.0, 8.0]])
    centred = [-1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 2.0]
    scale = (8 / 6) ** 0.5 + 1e-6
    assert [value for values in found for value in values] == pytest.approx([value / scale for value in centred])
    assert [len(values) for values in found] == [2, 2, 3]
    assert found[1] == [0.0, 0.0]
    alone = ReinforcePlusPlusBaseline().advantages([0.0, 2.0])
    assert alone == pytest.approx([-1 / (2**0.5 + 1e-6), 1 / (2**0.5 + 1e-6)])


@given(groups_of_rewards)
def test_of_every_estimator(groups):
    """One number a reward, of mean 0 within a group; a better response never has the smaller one; what a constant
    added to a group's rewards changes is rounding."""
    for estimator in ESTIMATORS:
        found = batch_advantages(estimator, groups)
        moved = batch_advantages(estimator, [[value + 3.0 for value in rewards] for rewards in groups])
        for rewards, values, shifted in zip(groups, found, moved, strict=True):
            assert len(values) == len(rewards)
            order = sorted(range(len(rewards)), key=rewards.__getitem__)
            assert all(values[a] <= values[b] for a, b in itertools.pairwise(order))
            assert fmean(values) == pytest.approx(0.0, abs=1e-6)
            if len(set(rewards)) < 2:
                assert values == [0.0] * len(rewards)
            spread = max(rewards) - min(rewards)
            if spread > 1e-3:
                assert shifted == pytest.approx(values, rel=1e-4, abs=1e-6)


@given(groups_of_rewards)
def test_the_whole_batch_has_unit_deviation_unless_nothing_differs(groups):
    values = [value for group in ReinforcePlusPlusBaseline().batch(groups) for value in group]
    centred = [value for group in DrGrpo().batch(groups) for value in group]
    if len(values) > 1 and stdev(centred) > 0.1:
        assert stdev(values) == pytest.approx(1.0, rel=1e-4)


class Broken(Grpo):
    name = "broken"

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def batch(self, groups):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[0.0, 1.0]], "gave advantages of 1 groups for 2"),
        ([[0.0, 1.0], [0.0]], r"gave \[0.0\] for 2 rewards"),
        ([[0.0, 1.0], [0.0, float("nan")]], "gave .*nan.* for 2 rewards"),
        ([[0.0, 1.0], [0.0, "x"]], "raised ValueError"),
        (None, "raised TypeError"),
        (KeyError("k"), "raised KeyError"),
        (SystemExit(3), "raised SystemExit"),
    ],
)
def test_an_estimator_that_breaks_its_contract_is_named(answer, message):
    with pytest.raises(PluginError, match=f"advantage 'broken' {message}"):
        batch_advantages(Broken(answer), [[0.0, 1.0], [1.0, 2.0]])
