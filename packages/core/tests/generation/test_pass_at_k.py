"""pass@k and the spread of pass rates."""

from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.generation.pass_at_k import PassAtK, histogram, mean_pass_at, pass_at, pass_at_powers


@pytest.mark.parametrize("n", range(1, 8))
def test_it_is_what_counting_all_draws_gives(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            draws = list(combinations(range(n), k))
            lucky = sum(any(attempt < c for attempt in draw) for draw in draws)
            assert pass_at(n, c, k) == Fraction(lucky, len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (2, 3, 1), (2, -1, 1), (2, 1, 3), (2, 1, 0)])
def test_what_is_no_draw_is_refused(n, c, k):
    with pytest.raises(ValueError, match=f"n = {n}, c = {c}, k = {k}"):
        pass_at(n, c, k)


@given(st.lists(st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=12))
def test_the_mean_is_over_tasks_with_enough_attempts(tasks):
    for k in range(1, 10):
        values = [pass_at(n, c, k) for n, c in tasks if n >= k]
        mean = sum(values, Fraction(0)) / len(values) if values else None
        assert mean_pass_at(Counter(tasks), k) == PassAtK(k, mean, len(values))
    spread = histogram(Counter(tasks), 9)
    assert sum(spread.values()) == sum(n > 0 for n, _ in tasks)
    assert list(spread) == sorted(spread) and set(spread) >= {Fraction(passed, 9) for passed in range(10)}
    assert all(spread[Fraction(c, n)] for n, c in tasks if n)


@pytest.mark.parametrize(("n_trials", "ks"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])])
def test_k_doubles_up_to_the_number_of_trials(n_trials, ks):
    assert [item.k for item in pass_at_powers({(n_trials, 1): 3}, n_trials)] == ks


def test_with_many_trials_only_values_that_occur_are_listed():
    assert histogram({(64, 3): 2, (0, 0): 5}, 64) == {Fraction(0): 0, Fraction(3, 64): 2, Fraction(1): 0}
