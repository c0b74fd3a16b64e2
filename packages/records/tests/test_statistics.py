import math
import statistics
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from reroll_records.aggregation.statistics import chance_of_at_most, moments, upper_bound

confidences = st.sampled_from([0.01, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999])


@st.composite
def counts(draw, most=2000):
    draws = draw(st.integers(1, most))
    return draw(st.integers(0, draws)), draws


@given(counts(), confidences)
def test_upper_bound_is_that_of_scipys_exact_binomial(found, confidence):
    deviations, draws = found
    exact = 1.0 if deviations == draws else beta.ppf(confidence, deviations + 1, draws - deviations)
    assert upper_bound(deviations, draws, confidence) == pytest.approx(exact, rel=1e-9)
    if confidence > 0.5:  # one side of a two-sided interval of twice the doubt
        interval = binomtest(deviations, draws).proportion_ci(2 * confidence - 1, method="exact")
        assert upper_bound(deviations, draws, confidence) == pytest.approx(interval.high, rel=1e-9)


@pytest.mark.parametrize("deviations", [0, 1, 10, 1000, 100_000, 500_000, 999_999, 1_000_000])
@pytest.mark.parametrize("confidence", [0.05, 0.95, 0.999])
def test_upper_bound_holds_at_a_million_draws(deviations, confidence):
    draws = 1_000_000
    exact = 1.0 if deviations == draws else beta.ppf(confidence, deviations + 1, draws - deviations)
    assert upper_bound(deviations, draws, confidence) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("deviations", "draws"), [(0, 1_000_000), (1, 1_000_000), (20, 1_000_000), (3, 16), (70, 100)])
@pytest.mark.parametrize("confidence", [0.05, 0.95, 0.999])
def test_chance_at_the_bound_is_one_minus_confidence_in_exact_arithmetic(deviations, draws, confidence):
    bound = upper_bound(deviations, draws, confidence)
    with localcontext() as context:
        context.prec = 60
        rate = Decimal(bound)
        terms = (math.comb(draws, k) * rate**k * (1 - rate) ** (draws - k) for k in range(deviations + 1))
        assert float(sum(terms)) == pytest.approx(1 - confidence, rel=1e-12)


@given(counts(most=300), st.floats(1e-6, 1 - 1e-6))
def test_chances_below_and_above_add_to_one(found, rate):
    deviations, draws = found
    below = chance_of_at_most(deviations, draws, rate)
    above = chance_of_at_most(draws - deviations - 1, draws, 1 - rate) if deviations < draws else 0.0
    assert below + above == pytest.approx(1, rel=1e-9)


@given(st.integers(1, 10**6), confidences)
def test_with_zero_deviations_the_bound_has_its_closed_form(draws, confidence):
    with localcontext() as context:
        context.prec = 60
        exact = 1 - (1 - Decimal(confidence)) ** (1 / Decimal(draws))
        assert upper_bound(0, draws, confidence) == pytest.approx(float(exact), rel=1e-12)


def test_with_zero_deviations_the_bound_is_0_17_at_16_draws_and_0_09_at_32():
    assert round(upper_bound(0, 16, 0.95), 2) == 0.17
    assert round(upper_bound(0, 32, 0.95), 2) == 0.09


def test_at_a_true_success_rate_of_10_percent_16_draws_show_no_success_19_percent_of_the_time():
    assert round(chance_of_at_most(0, 16, 0.1), 2) == 0.19


@given(counts(most=500), confidences)
def test_one_deviation_more_raises_the_bound_and_one_draw_more_lowers_it(found, confidence):
    deviations, draws = found
    bound = upper_bound(deviations, draws, confidence)
    assert upper_bound(deviations, draws + 1, confidence) < bound or deviations == draws
    assert deviations == draws or upper_bound(deviations + 1, draws, confidence) > bound


def test_everything_deviates_and_nothing_was_drawn_bound_nothing():
    assert upper_bound(5, 5, 0.95) == 1.0
    assert upper_bound(0, 0, 0.95) == 1.0


@pytest.mark.parametrize(("deviations", "draws"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_refused_with_both_numbers(deviations, draws):
    with pytest.raises(ValueError, match=f"deviations = {deviations} .* draws = {draws}"):
        upper_bound(deviations, draws, 0.95)


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 1.5, math.nan])
def test_impossible_confidence_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence = "):
        upper_bound(0, 3, confidence)


def _histogram(values):
    found = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


numbers = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(-1e18, 1e18),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 5e-324, 2.2250738585072014e-308, -3e-310]),
)


@given(st.lists(numbers, min_size=2, max_size=50))
def test_moments_are_those_of_numpy(values):
    found = moments(_histogram(values))
    array = np.array(values, dtype=np.longdouble)
    scale = float(np.max(np.abs(array)))
    assert found.count == len(values)
    assert found.mean == pytest.approx(float(array.mean()), rel=1e-12, abs=1e-15 * scale)
    assert found.variance == pytest.approx(float(array.var(ddof=1)), rel=1e-9, abs=1e-15 * scale * scale)
    assert (found.minimum, found.maximum) == (array.min(), array.max())


@given(st.lists(numbers, min_size=2, max_size=50))
def test_moments_are_exact_to_the_last_digit_and_in_any_order(values):
    found = moments(_histogram(values))
    assert found.mean == statistics.mean(values)
    assert found.variance == statistics.variance(values)
    assert found == moments(_histogram(reversed(values)))


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9, 1e12])
def test_variance_survives_a_large_offset(offset):
    rewards = np.random.default_rng(0).integers(0, 1000, 500) / 8
    found = moments(_histogram((rewards + offset).tolist()))
    assert found.variance == pytest.approx(float(rewards.var(ddof=1)), rel=1e-9)


def test_subnormal_values_keep_their_mean():
    found = moments({5e-324: 2, 1.5e-323: 2})
    assert found.mean == 1e-323
    assert found.variance == 0.0  # below the smallest number that there is


def test_without_values_there_are_no_moments_and_one_value_has_no_variance():
    assert moments({}) == moments({1.0: 0})
    assert moments({}).mean is None
    one = moments({0.25: 1})
    assert (one.mean, one.variance, one.minimum, one.maximum) == (0.25, None, 0.25, 0.25)


@pytest.mark.parametrize("histogram", [{1: 2, 0: 1}, {1.0: 2, -0.0: 1}])
def test_digits_do_not_depend_on_how_a_number_was_spelled_first(histogram):
    found = moments(histogram)
    assert repr((found.minimum, found.maximum)) == "(0.0, 1.0)"
