"""The cursor's order and the ledger's accounting."""

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Disposition, PromptFilter, TaskError
from reroll.tasks.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parent))

from cursor_cases import Numbers, Streaming, cursor


class SkipOdd(PromptFilter):
    name = "skip_odd"

    def skip(self, task, rendered):
        return "odd" if int(rendered.text) % 2 else None


def take(walk, count):
    """The next dispatches; fewer than `count` when the data runs out."""
    return list(itertools.islice(iter(walk.take, None), count))


def rows(dispatches):
    return [dispatch.task.source_row for dispatch in dispatches]


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 7))
def test_every_epoch_is_a_permutation(size, seed, count):
    walk = cursor(Numbers(size), seed=seed, epochs=2)
    taken = []
    while batch := take(walk, count):
        taken += batch
    assert sorted(rows(taken)[:size]) == sorted(rows(taken)[size:]) == list(range(size))
    assert [dispatch.attempt for dispatch in taken] == [0] * size + [1] * size


def test_order_follows_the_seed_and_changes_with_the_epoch():
    first, again, other = (rows(take(cursor(Numbers(20), seed=seed), 40)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[:20] != first[20:]
    assert rows(take(cursor(Numbers(5), shuffle=False), 7)) == [0, 1, 2, 3, 4, 0, 1]


def test_skipped_prompts_are_moved_past_and_counted():
    walk = cursor(Numbers(120), filters={"skip_odd": SkipOdd()}, max_prompt_len=2, epochs=1)
    taken = take(walk, 1000)
    assert sorted(rows(taken)) == list(range(0, 100, 2))
    assert walk.skipped == {"too_long": 20, "skip_odd: odd": 50}


def test_nothing_left_to_dispatch_is_an_error_not_an_endless_loop():
    with pytest.raises(TaskError, match=r"can be dispatched: all of them are skipped \(too_long: 3\)"):
        cursor(Numbers(3), max_prompt_len=0).take()


class SkipAll(PromptFilter):
    name = "skip_all"

    def skip(self, task, rendered):
        return "known"


class Endless(Streaming):
    def __iter__(self):
        return map(Numbers(10).task, itertools.cycle(range(10)))


def test_an_endless_set_of_which_everything_is_skipped_is_an_error_not_an_endless_loop(monkeypatch):
    monkeypatch.setattr("reroll.tasks.cursor.MOST_SKIPPED", 500)
    walk = cursor(Endless(0), filters={"skip_all": SkipAll()})
    with pytest.raises(TaskError, match=r"500 prompts of 'numbers' in a row: .* \(skip_all: known: 500\)"):
        walk.take()


def test_a_filter_that_is_new_after_a_resume_skips_unfinished_dispatches_too():
    walk = cursor(Numbers(20), epochs=1)
    taken = take(walk, 8)
    walk.give_back(taken[0])
    state = walk.state(taken[1:])
    again = cursor(Numbers(20), epochs=1, filters={"skip_odd": SkipOdd()})
    again.restore(state)
    given = rows(take(again, 100))
    assert sorted(given) == list(range(0, 20, 2))
    assert again.skipped == {"skip_odd: odd": 10}


def test_streaming_sets_keep_their_order():
    assert rows(take(cursor(Streaming(4), epochs=1), 10)) == [0, 1, 2, 3]


@given(st.lists(st.sampled_from(get_args(Disposition)), max_size=50), st.integers(0, 20))
def test_the_ledger_adds_up(endings, unfinished):
    ledger = Ledger()
    for number, ending in enumerate(endings):
        index = ledger.dispatch()
        if number % 2:
            ledger.queue(index)
        ledger.end(index, ending)
    for number in range(unfinished):
        index = ledger.dispatch()
        if number % 2:
            ledger.queue(index)
    summary = ledger.summary()
    assert summary.pop("dispatched") == sum(summary.values())
    assert {name: count for name, count in summary.items() if count and name not in ("in_flight", "queued")} == Counter(
        endings
    )
    assert (ledger.in_flight, ledger.queued) == ((unfinished + 1) // 2, unfinished // 2)
    assert ledger.unfinished() == list(range(len(endings), len(endings) + unfinished))


def test_an_ending_that_cannot_be_is_refused():
    ledger = Ledger()
    assert ledger.dispatch() == 0
    ledger.queue(0)
    with pytest.raises(AssertionError):
        ledger.queue(0)
    ledger.end(0, "consumed")
    for wrong in (0, 1):
        with pytest.raises(AssertionError):
            ledger.end(wrong, "consumed")


def test_what_is_given_back_comes_next_as_a_further_attempt():
    walk = cursor(Numbers(3), shuffle=False, epochs=1)
    first, _, last = take(walk, 3)
    assert walk.take() is None
    walk.give_back(last)
    walk.give_back(first)
    again = take(walk, 5)
    assert [(item.task.source_row, item.attempt) for item in again] == [(2, 1), (0, 1)]
    assert again[1].rendered is first.rendered
    assert walk.take() is None
