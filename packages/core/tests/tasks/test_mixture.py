"""Several data sources as one walk: shares, limits, rests, and what a checkpoint keeps of them."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Binding, CheckpointError
from reroll.tasks.binding import POLL_SECONDS
from reroll.tasks.mixture import REST_SECONDS, Mixture, Source

sys.path.insert(0, str(Path(__file__).parent))

from cursor_cases import Numbers, cursor


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Empty(Numbers):
    """Has nothing to bind to until it is filled."""

    lazy = True
    online = True
    patience = 0.0
    filled = False

    def bind(self, task, request, tries=0):
        return Binding(task) if self.filled else None


def mixture(ratios, sizes=None, most=None, clock=None, task_sets=None):
    task_sets = task_sets or {name: Numbers((sizes or {}).get(name, 5)) for name in ratios}
    epochs = dict.fromkeys(sizes or (), 1)
    return Mixture(
        [
            Source(name, cursor(task_sets[name], epochs=epochs.get(name)), ratio, (most or {}).get(name))
            for name, ratio in ratios.items()
        ],
        clock or Clock(),
    )


def take(mixed, count):
    return [mixed.take() for _ in range(count)]


RATIOS = st.dictionaries(st.sampled_from("abcd"), st.floats(0.05, 20), min_size=1)


@given(RATIOS, st.integers(1, 200))
def test_every_source_is_within_one_dispatch_of_its_share_at_any_moment(ratios, count):
    mixed, taken = mixture(ratios), Counter()
    for number in range(1, count + 1):
        taken[mixed.take().source] += 1
        for name, ratio in ratios.items():
            share = number * ratio / sum(ratios.values())
            # Stride scheduling: never a whole dispatch ahead of each of the others.
            assert taken[name] < share + 1 + len(ratios)
            assert taken[name] > share - 1 - len(ratios)


def test_ratios_of_whole_numbers_are_met_exactly_by_each_round():
    mixed = mixture({"a": 3, "b": 1})
    for _ in range(5):
        assert Counter(item.source for item in take(mixed, 4)) == {"a": 3, "b": 1}


def test_a_source_at_its_limit_is_passed_over_until_one_of_its_groups_has_left():
    mixed = mixture({"a": 1, "b": 1}, most={"b": 1})
    first = take(mixed, 4)
    assert [item.source for item in first] == ["a", "b", "a", "a"]
    mixed.left(first[1])
    assert mixed.take().source == "b"


def test_where_every_source_is_at_its_limit_there_is_nothing_now_and_the_data_has_not_run_out():
    mixed = mixture({"a": 1}, most={"a": 1})
    only = mixed.take()
    assert mixed.take() is None and not mixed.dry
    mixed.left(only)
    assert mixed.take() is not None


def test_a_source_that_had_nothing_rests_and_does_not_catch_up_what_it_missed():
    clock, empty = Clock(), Empty(5)
    empty.patience = 0.05
    mixed = mixture({"a": 1, "b": 1}, clock=clock, task_sets={"a": Numbers(5), "b": empty})
    first = take(mixed, 2)
    assert asyncio.run(mixed.bind(first[1])) is None
    assert "'b'" in mixed.unbound(first[1])
    mixed.left(first[1])
    assert [item.source for item in take(mixed, 10)] == ["a"] * 10
    clock.now += REST_SECONDS
    assert Counter(item.source for item in take(mixed, 10)) == {"a": 5, "b": 5}


def test_a_source_that_is_not_waited_for_rests_all_the_same():
    clock, empty = Clock(), Empty(5)
    mixed = mixture({"b": 1}, clock=clock, task_sets={"b": empty})
    dispatch = mixed.take()
    assert asyncio.run(mixed.bind(dispatch)) is None
    assert mixed.take() is None and mixed.resting == POLL_SECONDS


def test_a_rest_is_told_in_seconds_so_that_somebody_wakes_the_run():
    clock, empty = Clock(), Empty(5)
    mixed = mixture({"b": 1}, clock=clock, task_sets={"b": empty})
    dispatch = mixed.take()
    empty.patience = 3.0
    source = mixed.sources["b"]
    source.rests_until = clock.now + 3.0
    mixed.left(dispatch)
    assert mixed.take() is None and mixed.resting == 3.0 and not mixed.dry
    clock.now = 3.0
    assert mixed.take().source == "b"


def test_a_rest_that_ends_right_after_nothing_could_be_taken_wakes_the_run_all_the_same():
    clock = Clock()
    mixed = mixture({"b": 1}, clock=clock, task_sets={"b": Empty(5)})
    mixed.sources["b"].rests_until = 3.0
    clock.now = 2.999
    assert mixed.take() is None
    clock.now = 3.001
    assert mixed.resting == 0.0
    assert mixed.take().source == "b" and mixed.resting is None


def test_a_source_that_has_run_out_leaves_the_rest_to_the_others():
    mixed = mixture({"a": 1, "b": 1}, sizes={"a": 2})
    assert Counter(item.source for item in take(mixed, 12)) == {"a": 2, "b": 10}
    assert not mixed.dry


def test_the_mixture_is_dry_once_all_sources_are():
    mixed = mixture({"a": 1, "b": 2}, sizes={"a": 2, "b": 3})
    assert len([item for item in take(mixed, 9) if item]) == 5
    assert mixed.dry
    given_back = mixture({"a": 1}, sizes={"a": 1})
    only = given_back.take()
    assert given_back.take() is None and given_back.dry
    given_back.give_back(only)
    assert not given_back.dry and given_back.take().attempt == 1


@given(RATIOS, st.integers(0, 30), st.integers(0, 10))
def test_a_restored_mixture_gives_what_an_unbroken_one_gives(ratios, before, open_ones):
    unbroken = mixture(ratios)
    taken = take(unbroken, before)
    unfinished = taken[len(taken) - min(open_ones, before) :]
    resumed = mixture(ratios)
    resumed.restore(json.loads(json.dumps(unbroken.state(unfinished))))
    again = take(resumed, len(unfinished))
    assert [(item.source, item.task.key, item.attempt) for item in again] == [
        (item.source, item.task.key, item.attempt) for item in unfinished
    ]
    following = [(item.source, item.task.key, item.attempt) for item in take(unbroken, 20)]
    assert [(item.source, item.task.key, item.attempt) for item in take(resumed, 20)] == following


def test_each_source_says_for_itself_why_it_had_nothing():
    empty, full = Empty(1), Empty(1)
    full.filled = True
    mixed = mixture({"a": 1, "b": 1}, task_sets={"a": empty, "b": full})
    mixed.sources["b"].cursor._max_prompt_len = -1  # everything is skipped
    first = take(mixed, 2)

    async def bind_all():
        return await asyncio.gather(*map(mixed.bind, first))

    assert asyncio.run(bind_all()) == [None, None]
    assert "'a'" in mixed.unbound(first[0]) and "had nothing" in mixed.unbound(first[0])
    assert "'b'" in mixed.unbound(first[1]) and "too_long" in mixed.unbound(first[1])


def test_what_a_checkpoint_left_unfinished_keeps_to_the_limit_of_its_source():
    before = mixture({"a": 1, "b": 1}, most={"b": 1})
    taken = []
    for _ in range(6):
        taken.append(before.take())
        before.left(taken[-1])  # it waits in the buffer: another of its source may be in flight
    resumed = mixture({"a": 1, "b": 1}, most={"b": 1})
    resumed.restore(before.state(taken))
    again = take(resumed, 4)
    assert [item.source for item in again] == ["a", "b", "a", "a"]
    resumed.left(again[1])
    assert [(item.source, item.task.key, item.attempt) for item in take(resumed, 1)] == [
        ("b", taken[3].task.key, taken[3].attempt)
    ]


def test_what_a_filter_of_now_skips_is_replaced_by_nothing_that_counts_for_no_share():
    class Odd:
        def skip(self, task, rendered):
            return "odd" if task.source_row % 2 else None

    before = mixture({"a": 1, "b": 1})
    taken = take(before, 8)
    resumed = mixture({"a": 1, "b": 1})
    for source in resumed.sources.values():
        source.cursor._filters = {"odd": Odd()}
    resumed.restore(before.state(taken))
    kept = [item for item in taken if item.task.source_row % 2 == 0]
    assert [item.task.key for item in take(resumed, len(kept))] == [item.task.key for item in kept]
    owed = {name: source.owed for name, source in resumed.sources.items()}
    following = resumed.take()
    assert resumed.sources[following.source].owed == owed[following.source] + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 9}, "schema"),
        ({"sources": {}}, "mixture.sources"),
        ({"again": ["x"]}, "mixture.again"),
        ({"again": None}, "mixture.again"),
        ({"sources": {"a": {"owed": -1, "cursor": {}}}}, "owed"),
        ({"sources": {"a": {"owed": float("nan"), "cursor": {}}}}, "owed"),
        ({"sources": {"a": {"owed": True, "cursor": {}}}}, "owed"),
        ({"sources": {"a": {"owed": 1.0, "cursor": []}}}, "cursor"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_field(change, words):
    state = mixture({"a": 1}).state([]) | change
    with pytest.raises(CheckpointError, match=words):
        mixture({"a": 1}).restore(state)


def test_a_resumed_source_keeps_to_its_limit_with_what_was_unfinished():
    before = mixture({"a": 1, "b": 1})
    unfinished = take(before, 8)
    resumed = mixture({"a": 1, "b": 1}, most={"b": 1})
    resumed.restore(before.state(unfinished))
    first = take(resumed, 5)
    assert [item.source for item in first] == ["a", "b", "a", "a", "a"]
    resumed.left(first[1])
    assert resumed.take().task == unfinished[3].task
