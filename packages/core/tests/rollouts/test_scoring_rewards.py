"""Rewards, the options of scoring, and the contract that verdicts are held to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.api import Verdict
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.contract import ContractViolation, checked, checked_group, described, shown
from reroll.rollouts.scoring.rewards import combine_rewards

OK, WRONG = Verdict(1.0), Verdict(0.0, state="completed")
LATE, DOWN = Verdict(None, state="timeout"), Verdict(0.7, state="service_error")


def test_rewards_are_weighted():
    assert combine_rewards({"a": OK, "b": Verdict(0.5)}, {"a": 2.0, "b": 0.5}) == ({"a": 2.0, "b": 0.25}, 2.25)
    assert combine_rewards({"a": OK, "b": WRONG}, {}) == ({"a": 1.0, "b": 0.0}, 1.0)


@pytest.mark.parametrize("failed", [LATE, DOWN, Verdict(None), Verdict(None, state="unknown")])
def test_a_failed_verifier_excludes_the_response(failed):
    assert combine_rewards({"a": OK, "b": failed}, {"a": 2.0}) == ({"a": 2.0}, None)


def test_a_failed_verifier_counts_as_the_stated_score():
    assert combine_rewards({"a": OK, "b": LATE}, {"b": 4.0}, -0.5) == ({"a": 1.0}, -1.0)
    assert combine_rewards({"a": OK, "b": DOWN}, {}, 0) == ({"a": 1.0}, 1.0)


def test_a_rejected_answer_is_scored():
    assert combine_rewards({"a": Verdict(0.0, state="rejected")}, {}) == ({"a": 0.0}, 0.0)


def test_nothing_judged_is_no_reward():
    assert combine_rewards({}, {}) == ({}, None)
    assert combine_rewards({}, {}, 0.0) == ({}, None)


numbers = st.one_of(st.floats(), st.integers(-(10**400), 10**400), st.booleans(), st.none(), st.text(max_size=5))


@given(numbers, st.dictionaries(st.text(max_size=3), numbers, max_size=3))
def test_a_checked_verdict_holds_plain_finite_floats(score, components):
    try:
        verdict = checked(Verdict(score, components))
    except ContractViolation as error:
        assert "\n" not in str(error)
        return
    for value in [*([] if verdict.score is None else [verdict.score]), *verdict.components.values()]:
        assert type(value) is float and math.isfinite(value)


@given(st.one_of(numbers, st.lists(numbers), st.tuples(), st.dictionaries(st.text(), numbers)), st.integers(0, 3))
def test_what_is_no_list_of_verdicts_is_refused(value, count):
    if isinstance(value, (list, tuple)) and len(value) == count == 0:
        assert checked_group(value, count) == []
        return
    with pytest.raises(ContractViolation):
        checked_group(value, count)


def test_errors_survive_a_hostile_repr():
    class Odd(Exception):
        def __repr__(self):
            raise RuntimeError

        __str__ = __repr__

    assert shown(Odd()) == "<repr raised RuntimeError> (Odd)"
    assert described(Odd()) == "Odd: <str raised RuntimeError>"
    assert len(shown("x" * 100_000)) < 300


@pytest.mark.parametrize("fault", [{"workers": 0}, {"deadline_seconds": 0}, {"deadline_seconds": math.inf}, {"x": 1}])
def test_options_are_checked(fault):
    with pytest.raises(ValidationError):
        ScoringConfig(**fault)
