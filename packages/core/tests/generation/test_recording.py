"""Record writers get the whole group of each task, however often the generation was cut."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from generating_cases import World, run_of, start
from measuring_cases import addition, inline, measured
from trial_cases import Compared

from reroll.api import EngineError, Group, hookimpl
from reroll.generation.store import traces_path
from reroll.rollouts.seeds import response_seed
from reroll.traces.saved import read_traces

TASKS, TRIALS = 6, 3


def groups_of(*worlds):
    return [item[1] for world in worlds for item in world.heard if isinstance(item[1], Group)]


def check_whole(groups, run_seed=0):
    """One group a task with each trial once, as it was drawn."""
    assert len(groups) == len({group.task.key for group in groups}) == TASKS
    for group in groups:
        seeds = [response_seed(run_seed, group.task.key, 0, trial, "generate") for trial in range(TRIALS)]
        assert group.seeds == [trace.nodes[-1].seed for trace in group.traces] == seeds
        assert group.rewards == [trace.verdicts["even"].score for trace in group.traces]
        assert group.rewards == [float(seed % 2 == 0) for seed in seeds]
        assert len({trace.id for trace in group.traces}) == TRIALS
        assert (group.source, group.env_name) == ("generate", "addition")
        assert {trace.task.key for trace in group.traces} == {group.task.key}


@pytest.mark.parametrize("layout", ["journal", "tree"])
def test_each_task_is_recorded_once_and_whole(layout, tmp_path):
    world = World()
    entries = start(run_of(f'generation.layout="{layout}"'), tmp_path, world)
    assert len(entries) == TASKS * TRIALS
    check_whole(groups_of(world))
    assert world.context.source == "generate"
    assert [item[1] for item in world.heard[1::2]] == ["returned"] * TASKS
    assert [item[0] for item in world.heard[::2]] == [item[0] for item in world.heard[1::2]]
    assert {item[2].outcome for item in world.heard[::2]} <= {"passed", "filtered"}


def test_what_the_group_filters_would_have_decided_is_told(tmp_path):
    world = World()
    start(run_of(), tmp_path, world)
    for _, group, decision in world.heard[::2]:
        assert decision.outcome == ("filtered" if len(set(group.rewards)) == 1 else "passed")
    assert len({item[2].outcome for item in world.heard[::2]}) == 2, "there are tasks of both kinds"


@pytest.mark.parametrize("layout", ["journal", "tree"])
@pytest.mark.parametrize("breaks", [1, 2, 4, 7, 10, 16])
def test_a_generation_that_was_cut_records_whole_groups_in_the_end(breaks, layout, tmp_path):
    run, before, after = run_of(f'generation.layout="{layout}"'), World(breaks=breaks), World()
    with pytest.raises(EngineError, match="told to break"):
        start(run, tmp_path, before)
    first = groups_of(before)
    entries = start(run, tmp_path, after)
    pairs = [(entry.position, entry.trial) for entry in entries]
    assert sorted(pairs) == [(position, trial) for position in range(TASKS) for trial in range(TRIALS)]
    assert after.answers == TASKS * TRIALS - (len(pairs) - after.answers), "nothing is made twice"
    # What was whole on disk when the first start ended may have been told of then, or by none.
    keys = {group.task.key for group in first}
    rest = groups_of(after)
    assert keys.isdisjoint(group.task.key for group in rest)
    whole = {group.task.key for group in [*first, *rest]}
    untold = {entry.source_dataset + ":" + entry.prepared_sample_id for entry in entries} - whole
    assert len(untold) <= 4, "no more than were in hand"
    if not untold:
        check_whole([*first, *rest])
    for group in rest:
        assert len(group.traces) == TRIALS


def test_an_attempt_that_failed_before_is_recorded_as_it_came_to_be_judged(tmp_path):
    run = run_of()
    failing = [response_seed(0, key, 0, 1, "generate") for key in keys_of(run)]
    first = World(fails=failing[:2])
    entries = start(run, tmp_path, first)
    assert [entry.outcome for entry in entries].count("error") == 2
    assert sorted(rewards_missing(groups_of(first))) == [1, 1], "the others are recorded as they are"
    second = World()
    entries = start(run, tmp_path, second)
    assert len(entries) == TASKS * TRIALS + 2
    assert second.answers == 2
    again = groups_of(second)
    assert len(again) == 2
    for group in again:
        assert len(group.traces) == TRIALS
        assert None not in group.rewards
    assert "(said once a kind)" in first.lines.getvalue()
    assert start(run, tmp_path, third := World()) == entries
    assert (third.answers, third.heard) == (0, [])


def test_an_attempt_that_is_kept_twice_counts_once(tmp_path):
    """As where somebody joined the traces of two folders."""
    start(run_of(n_trials=1), tmp_path, World())
    path = traces_path(tmp_path)
    path.write_bytes(path.read_bytes() * 2)
    world = World()
    start(run_of(n_trials=3), tmp_path, world)
    assert world.answers == TASKS * 2
    check_whole(groups_of(world))


def keys_of(run):
    return [task.key for _, task in measured(run).tasks]


def rewards_missing(groups):
    return [group.rewards.count(None) for group in groups if None in group.rewards]


def test_more_trials_are_recorded_with_those_that_were_there(tmp_path):
    start(run_of(n_trials=2), tmp_path, World())
    world = World()
    start(run_of(n_trials=3), tmp_path, world)
    assert world.answers == TASKS
    check_whole(groups_of(world))


def test_trials_that_are_compared_are_made_together_again_and_kept_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    tasks = inline(addition(TASKS, verifier="compared"))
    overrides = ['data.verifiers=["compared"]', f"data.task_set={tasks}", "rollout.scoring.workers=1"]
    run = run_of(*overrides, plugin=ComparedPlugin())
    whole = start(run, tmp_path, World())
    assert [entry.outcome for entry in whole] == ["passed", "failed", "failed"] * TASKS
    first = whole[0].position
    os.truncate(traces_path(tmp_path), sum(whole[1].place))
    world = World()
    entries = start(run, tmp_path, world)
    assert world.answers == (TASKS - 1) * TRIALS + TRIALS, "the task of which one is missing is made as a whole"
    pairs = [(entry.position, entry.trial) for entry in entries]
    assert sorted(pairs) == sorted((entry.position, entry.trial) for entry in whole)
    assert entries[:2] == whole[:2], "what was kept before counts"
    assert {entry.outcome for entry in entries if entry.position == first} == {"passed", "failed"}
    groups = groups_of(world)
    assert sorted(len(group.traces) for group in groups) == [TRIALS] * TASKS
    assert len(read_traces(traces_path(tmp_path))) == TASKS * TRIALS


class ComparedPlugin:
    @hookimpl
    def reroll_verifiers(self):
        return [Compared]


def test_the_kept_traces_are_read_like_those_of_any_run(tmp_path):
    start(run_of(), tmp_path, World())
    saved = read_traces(next(tmp_path.rglob("train_rollouts.jsonl")))
    assert len(saved) == TASKS * TRIALS
    assert {len(item.group.traces) for item in saved} == {1}
