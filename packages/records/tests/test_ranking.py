import math
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact
from written_store import LINEAGE, group, key, manifest, response, write

from reroll_records.api import open_store
from reroll_records.inspection.ranking import RUNS_IN_PAIRS, _pairs, rank
from reroll_records.inspection.tallies import ERAS, Eras, Tally, chance_of_change, standard_error_of_change

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def tally_of(numbers):
    found = Tally()
    for number in numbers:
        found.add(number)
    return found


@given(values, values)
def test_tallies_and_their_sums_are_those_of_numpy(first, second):
    both = tally_of(first) + tally_of(second)
    array = np.array(first + second)
    assert both.count == len(array)
    assert both.mean == pytest.approx(array.mean(), rel=1e-9, abs=1e-9)
    assert both.squares == pytest.approx(((array - array.mean()) ** 2).sum(), rel=1e-6, abs=1e-3)
    assert both.standard_error == pytest.approx(array.std(ddof=1) / math.sqrt(len(array)), rel=1e-6, abs=1e-4)
    assert tally_of(first) + Tally() == tally_of(first) == Tally() + tally_of(first)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 1.0])), min_size=1, max_size=100))
def test_eras_stay_few_and_hold_every_reward_once_early_ones_before_late_ones(found):
    eras = Eras()
    for version, reward in found:
        eras.add(version, reward)
    assert len(eras.tallies) <= ERAS
    assert eras.whole.count == len(found)
    early, late = eras.halves()
    assert early.count + late.count == len(found)
    assert early.count > 0
    ordered = [reward for _, reward in sorted(found, key=lambda pair: pair[0] // eras.span)]
    assert sum(sorted(ordered[: early.count])) == pytest.approx(early.mean * early.count)


sides = st.integers(1, 60).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))


def ones(count, total):
    return tally_of([1.0] * count + [0.0] * (total - count))


@given(sides, sides)
def test_the_standard_error_of_a_change_of_rewards_0_and_1_is_that_of_agresti_and_caffo(first, second):
    p, q = ((count + 1) / (total + 2) for count, total in (first, second))
    exact = math.sqrt(p * (1 - p) / (first[1] + 2) + q * (1 - q) / (second[1] + 2))
    assert standard_error_of_change(ones(*first), ones(*second), 0.0, 1.0) == pytest.approx(exact)


@given(sides, sides)
def test_the_chance_of_a_change_of_rewards_0_and_1_is_twice_that_of_scipys_exact_test(first, second):
    rows = [[first[0], first[1] - first[0]], [second[0], second[1] - second[0]]]
    exact = min(fisher_exact(rows, alternative=side).pvalue for side in ("less", "greater"))
    equal = first[0] * second[1] == second[0] * first[1]
    expected = 1.0 if equal else min(1.0, 2 * exact)
    assert chance_of_change(ones(*first), ones(*second), 0.0, 1.0) == pytest.approx(expected, rel=1e-9)


@given(values, values)
def test_a_chance_is_a_chance_and_the_same_both_ways_and_on_any_scale(first, second):
    lowest, highest = min(first + second), max(first + second)
    chance = chance_of_change(tally_of(first), tally_of(second), lowest, highest)
    assert 0 <= chance <= 1
    assert chance_of_change(tally_of(second), tally_of(first), lowest, highest) == chance


def test_what_never_varied_has_not_changed():
    assert chance_of_change(tally_of([1.0] * 9), tally_of([1.0] * 9), 1.0, 1.0) == 1.0
    assert standard_error_of_change(tally_of([1.0] * 9), tally_of([1.0] * 9), 1.0, 1.0) == 0.0


def store_of(root, rates, responses=8, groups=6, seed=0):
    """A group of each prompt at every weight version of two runs; `rates`: prompt → run number, version → chance."""
    chance = random.Random(seed)
    for run in range(2):
        rows = [
            group(
                f"{name}-{version}",
                name,
                [float(chance.random() < rate(run, version)) for _ in range(responses)],
                versions=[version],
            )
            for version in range(groups)
            for name, rate in rates.items()
        ]
        write(root, manifest(f"a{run}", run=f"run{run}"), rows)
    return open_store(root)


def test_the_hardest_prompts_have_the_lowest_mean_valid_reward_of_enough_valid_responses(tmp_path):
    invalid = [response(index, 1.0, "timeout") for index in range(20)]
    rows = [
        group("1", "hard", [0.0] * 15 + [1.0]),
        group("2", "harder", responses=[response(index, 0.0) for index in range(16)] + invalid),
        group("3", "hardest, with more evidence", [0.0] * 20),
        group("4", "too few", [0.0] * 15),
        group("5", "easy", [1.0] * 16),
    ]
    write(tmp_path, manifest("a"), rows)
    found = rank(open_store(tmp_path))
    assert [item.input_key for item in found.hardest] == [
        key(name) for name in ("hardest, with more evidence", "harder", "hard", "easy")
    ]
    assert (found.prompts, found.enough) == (5, 4)
    hard = found.hardest[2]
    assert (hard.valid_responses, hard.mean_reward, hard.best, hard.runs) == (16, 1 / 16, 1.0, 1)
    assert hard.standard_error == pytest.approx(np.std([0.0] * 15 + [1.0], ddof=1) / 4)
    assert found.hardest[1].valid_responses == 16


def test_prompts_under_two_lineages_are_two_rows(tmp_path):
    for number, lineage in enumerate((LINEAGE, "1" * 16)):
        write(tmp_path, manifest(str(number), lineage=lineage), [group("1", "x", [float(number)] * 16)])
    found = rank(open_store(tmp_path)).hardest
    assert [(item.lineage, item.mean_reward) for item in found] == [(LINEAGE, 0.0), ("1" * 16, 1.0)]


def test_a_change_within_a_run_and_one_between_runs_are_found(tmp_path):
    rates = {
        "learned": lambda run, version: 0.95 if version > 2 else 0.05,
        "other run": lambda run, version: 0.9 if run else 0.1,
        "steady": lambda run, version: 0.5,
    }
    found = rank(store_of(tmp_path, rates)).unstable
    by_name = {change.input_key: change for change in found}
    learned, other = by_name[key("learned")], by_name[key("other run")]
    assert learned.before.endswith(", early") and learned.after == learned.before.replace("early", "late")
    assert learned.change > 0.7 and learned.beyond_noise
    assert (other.before, other.after, other.beyond_noise) == ("run0", "run1", True)
    assert other.responses_before == other.responses_after == 48
    assert not by_name[key("steady")].beyond_noise
    assert [change.beyond_noise for change in found] == [True, True, False], "changes come before noise"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_called_change(tmp_path, seed):
    """Of hundreds of prompts that did not change, the largest change is large, and not said to be beyond noise."""
    chance = random.Random(seed)
    drawn = [chance.random() for _ in range(150)]
    rates = {str(number): (lambda run, version, rate=rate: rate) for number, rate in enumerate(drawn)}
    found = rank(store_of(tmp_path, rates, responses=4, groups=4, seed=seed), limit=1000)
    assert found.comparisons == 450
    assert max(abs(change.change) / change.standard_error for change in found.unstable) > 2
    assert [change for change in found.unstable if change.beyond_noise] == []


def test_few_responses_on_one_side_are_not_compared(tmp_path):
    write(tmp_path, manifest("a"), [group("1", "x", [0.0] * 16)])
    write(tmp_path, manifest("b", run="second"), [group("1", "x", [1.0] * 7)])
    assert rank(open_store(tmp_path)).comparisons == 0
    assert rank(open_store(tmp_path), min_responses=14).comparisons == 1


def _peak(root):
    store = open_store(root)
    tracemalloc.start()
    try:
        rank(store)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_prompts_and_not_with_rows(tmp_path):
    for name, count in (("few", 800), ("many", 3200)):
        rows = (group(str(i), str(i % 200), [0.0, 1.0], versions=[i // 200]) for i in range(count))
        write(tmp_path / name, manifest("a"), rows)
    _peak(tmp_path / "few")
    assert _peak(tmp_path / "many") < 1.5 * _peak(tmp_path / "few")


def test_of_many_runs_each_is_compared_with_the_next_and_the_first_with_the_last():
    few, many = [str(number) for number in range(RUNS_IN_PAIRS)], [str(number) for number in range(1000)]
    assert len(list(_pairs(few))) == RUNS_IN_PAIRS * (RUNS_IN_PAIRS - 1) // 2
    found = list(_pairs(many))
    assert len(found) == 1000 and found[0] == ("0", "1") and found[-1] == ("0", "999")
