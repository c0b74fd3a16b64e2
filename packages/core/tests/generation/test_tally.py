"""Which entries count, and what they add up to."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.generation.entries import Entry
from reroll.generation.protocol import ResultsError
from reroll.generation.tally import Tally


def entry(position=0, trial=0, outcome="passed", reward=1.0, tokens=10, final=True, detail="", truncated=False):
    given = None if outcome in ("error", "skipped") else reward
    task = ("main", "set", position, f"p{position}")
    return Entry(position, trial, outcome, final, given, 5, tokens, truncated, 7, *task, detail)


def only(tally):
    (result,) = tally.tasks()
    return result


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["error", "passed"], (1, 0, 0)),
        (["passed", "error"], (1, 0, 0)),
        (["failed", "passed"], (0, 1, 0)),
        (["error", "error"], (0, 0, 1)),
        (["skipped", "failed"], (0, 1, 0)),
        (["skipped"], (0, 0, 0)),
    ],
)
def test_of_several_entries_of_an_attempt_one_counts(outcomes, expected):
    found = only(Tally([0], 1).add_all(entry(outcome=outcome) for outcome in outcomes))
    assert (found.n_pass, found.n_fail, found.n_error) == expected
    assert (found.skipped is None) == (outcomes != ["skipped"])


def test_of_two_errors_the_last_says_whether_it_is_tried_again():
    tally = Tally([0], 1)
    tally.add(entry(outcome="error", final=False))
    assert [item.trials for item in tally.unfinished()] == [[0]]
    tally.add(entry(outcome="error", final=True))
    assert list(tally.unfinished()) == []


def test_a_skipped_task_has_no_attempts_and_nothing_missing():
    tally = Tally([0, 1], 4).add_all([entry(outcome="error", final=False), entry(outcome="skipped", detail="too long")])
    assert only(tally) == (0, "main", "set", 0, "p0", "", 0, 0, 0, None, 0, 0, "too long")
    assert tally.missing == 4
    assert [(item.position, item.task, item.trials) for item in tally.unfinished()] == [(1, None, [0, 1, 2, 3])]


def test_what_was_not_asked_for_is_not_counted():
    tally = Tally([4], 2).add_all([entry(4, 2), entry(4, -1), entry(5), entry(4, 1, "failed", 0.0)])
    assert tally.left_out == 3
    assert (only(tally).n_pass, only(tally).n_fail, only(tally).n_error) == (0, 1, 0)


def test_rewards_and_tokens_are_those_of_judged_attempts():
    entries = [entry(0, 0, reward=0.1), entry(0, 1, "failed", 0.2, tokens=3, truncated=True), entry(0, 2, "error")]
    found = only(Tally([0], 3).add_all(entries))
    assert (found.reward, found.tokens, found.truncated) == (math.fsum([0.1, 0.2]) / 2, 13, 1)
    assert found.pass_rate == 0.5
    assert only(Tally([0], 1).add_all([entry(outcome="error")])).pass_rate is None


def test_two_tasks_at_one_position_are_refused():
    with pytest.raises(ResultsError, match=r"task 0 is row 0 of 'set', 'p0'.* and also .*'other'.*count the results"):
        Tally([0], 2).add_all([entry(), replace(entry(0, 1), prepared_sample_id="other")])


def test_tokens_that_are_no_number_of_tokens_are_refused():
    with pytest.raises(ResultsError, match=r"task 0 \(p0\), trial 0: tokens: -1"):
        Tally([0], 2).add(entry(tokens=-1))


ENTRIES = st.builds(
    entry,
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from(["passed", "failed", "error", "skipped"]),
    st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    st.integers(0, 9),
    st.booleans(),
    st.just("why"),
    st.booleans(),
)
N_TRIALS, POSITIONS = 3, (0, 2, 3)


def counted(entries):
    """The plain model: a list of entries an attempt, and what the rules pick from each."""
    picked = {}
    for position in POSITIONS:
        of_task = [item for item in entries if item.position == position and item.trial < N_TRIALS]
        attempts = {}
        for trial in range(N_TRIALS):
            tries = [item for item in of_task if item.trial == trial and item.outcome != "skipped"]
            judged = [item for item in tries if item.judged]
            if tries:
                attempts[trial] = judged[0] if judged else tries[-1]
        skipped = any(item.outcome == "skipped" for item in of_task)
        if skipped and not any(item.judged for item in attempts.values()):
            attempts = None
        if of_task:
            picked[position] = attempts
    return picked


@given(st.lists(ENTRIES, max_size=60))
def test_it_counts_as_the_plain_model_does(entries):
    tally, expected = Tally(POSITIONS, N_TRIALS).add_all(entries), counted(entries)
    results = {result.position: result for result in tally.tasks()}
    assert list(results) == list(expected)
    for position, attempts in expected.items():
        found = results[position]
        assert (found.skipped == "why") == (attempts is None)
        counts = [
            sum(item.outcome == name for item in (attempts or {}).values()) for name in ("passed", "failed", "error")
        ]
        assert [found.n_pass, found.n_fail, found.n_error] == counts
        judged = [item for item in (attempts or {}).values() if item.judged]
        assert found.tokens == sum(item.tokens for item in judged)
        assert found.truncated == sum(item.truncated for item in judged)
        assert found.reward == (math.fsum(item.reward for item in judged) / len(judged) if judged else None)
    skipped = {item.position for item in entries if item.outcome == "skipped" and item.trial < N_TRIALS}
    open_tasks = [position for position in POSITIONS if position not in skipped]
    left = {}
    for position in open_tasks:
        found = expected.get(position, {})
        finished = {trial for trial, item in found.items() if item.judged or item.final}
        if finished != set(range(N_TRIALS)):
            left[position] = sorted(set(range(N_TRIALS)) - finished)
    assert {item.position: item.trials for item in tally.unfinished()} == left
    assert tally.missing == sum(N_TRIALS - len(expected.get(position, {})) for position in open_tasks)


@given(st.lists(st.sampled_from([1e308, -1e308, 1.7e308, 1.0, 0.0]), min_size=1, max_size=9))
def test_rewards_whose_sum_is_no_float_have_a_mean(rewards):
    def mean(given):
        return only(Tally([0], 9).add_all(entry(trial=trial, reward=one) for trial, one in enumerate(given))).reward

    found = mean(rewards)
    assert found == mean(rewards[::-1])
    assert min(rewards) <= found <= max(rewards)
    assert mean([1e308, 1e308]) == 1e308
