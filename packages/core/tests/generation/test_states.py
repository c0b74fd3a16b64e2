"""How trials stand, against a model that keeps every entry."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import entry_of, protocol_of

from reroll.api import RerollError
from reroll.generation.states import TrialStates
from reroll.generation.tally import Tally

TASKS, MOST_TRIALS = 4, 3
PROTOCOL = protocol_of(tasks=TASKS, n_trials=MOST_TRIALS)
ENTRIES = st.tuples(
    st.integers(0, TASKS - 1),
    st.integers(0, MOST_TRIALS - 1),
    st.sampled_from(["passed", "failed", "final error", "error", "error", "skipped"]),
)


def entry(position, trial, outcome):
    final = outcome != "error"
    return entry_of(PROTOCOL, position, trial, outcome.removeprefix("final "), final=final)


def stands(noted, position, trial):
    """How a trial stands after all entries, as `Entry.replaces` says it."""
    last = None
    for one in noted:
        own = one.position == position and (one.outcome == "skipped" or one.trial == trial)
        if own and (last is None or one.replaces(last)):
            last = one
    return None if last is None else last.outcome if last.final else "again"


@given(st.lists(ENTRIES, max_size=30), st.integers(1, MOST_TRIALS))
def test_states_are_those_of_the_model(given_entries, n_trials):
    states, noted = TrialStates(TASKS, n_trials), []
    for one in given_entries:
        found = entry(*one)
        trials = range(n_trials)
        before = {trial: stands(noted, found.position, trial) for trial in trials}
        noted.append(found)
        changed = states.note(found)
        if any(before[trial] != stands(noted, found.position, trial) for trial in trials):
            assert changed
        elif found.outcome != "skipped" and found.trial in trials and before[found.trial] in ("passed", "failed"):
            assert not changed
    model = [[stands(noted, position, trial) for trial in range(n_trials)] for position in range(TASKS)]
    for position, of_task in enumerate(model):
        assert states.missing(position) == [trial for trial, one in enumerate(of_task) if one in (None, "again")]
    for positions in (range(TASKS), [0, 2], range(1, TASKS), []):
        flat = [one for position in positions for one in model[position]]
        assert states.count(positions) == {
            "passed": flat.count("passed"),
            "failed": flat.count("failed"),
            "error": flat.count("error") + flat.count("again"),
            "skipped": flat.count("skipped"),
            "missing": flat.count(None),
            "left": flat.count(None) + flat.count("again"),
        }


@given(st.lists(ENTRIES, max_size=30))
def test_what_is_left_to_do_is_what_the_summary_lacks(given_entries):
    states, tally = TrialStates(TASKS, MOST_TRIALS), Tally(range(TASKS), MOST_TRIALS)
    for one in given_entries:
        states.note(entry(*one))
        tally.add(entry(*one))
    counts = states.count(range(TASKS))
    results = list(tally.tasks())
    judged_tasks = [result for result in results if result.skipped is None]
    assert counts["passed"] == sum(result.n_pass for result in judged_tasks)
    assert counts["failed"] == sum(result.n_fail for result in judged_tasks)
    assert [item.position for item in tally.unfinished()] == [
        position for position in range(TASKS) if states.missing(position)
    ]


def test_more_trials_leave_what_is_finished_as_it_is():
    entries = [entry(0, 0, "passed"), entry(0, 1, "error"), entry(1, 0, "failed"), entry(1, 1, "passed")]
    before, after = TrialStates(TASKS, 2), TrialStates(TASKS, 3)
    for one in entries:
        before.note(one)
        after.note(one)
    assert [before.missing(position) for position in range(2)] == [[1], []]
    assert [after.missing(position) for position in range(2)] == [[1, 2], [2]]


@pytest.mark.parametrize(("position", "trial"), [(TASKS, 0), (99, 1), (0, MOST_TRIALS), (-1, 0), (0, -1)])
@pytest.mark.parametrize("outcome", ["passed", "skipped", "error"])
def test_what_is_of_no_task_or_trial_changes_nothing(position, trial, outcome):
    if outcome == "skipped" and 0 <= position < TASKS:
        return
    from dataclasses import replace

    states = TrialStates(TASKS, MOST_TRIALS)
    assert not states.note(replace(entry(0, 0, outcome), position=position, trial=trial))
    assert states.count(range(TASKS))["missing"] == TASKS * MOST_TRIALS


@given(st.integers(1, 60), st.integers(1, 8), st.none() | st.sets(st.integers(0, 59)))
def test_shards_hold_every_task_once(tasks, shards, instances):
    listed = None if instances is None else sorted(one for one in instances if one < tasks)
    parts = [
        list(protocol_of(tasks=tasks, shard=(number, shards), instances=listed).positions())
        for number in range(1, shards + 1)
    ]
    whole = list(protocol_of(tasks=tasks, instances=listed).positions())
    assert (
        sorted(position for part in parts for position in part)
        == whole
        == (list(range(tasks)) if listed is None else listed)
    )
    assert all(part == sorted(part) for part in parts)
    if listed is None:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("n_trials", [1 << 50, 1 << 70])
def test_more_trials_than_memory_holds_are_refused(n_trials):
    with pytest.raises(RerollError, match=rf"generation\.n_trials = {n_trials}: .*; give fewer"):
        TrialStates(TASKS, n_trials)
