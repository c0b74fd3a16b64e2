"""Cursor and ledger across a checkpoint: what comes after is what would have come without one."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import CheckpointError, PromptFilter, TaskError
from reroll.tasks.ledger import DISPOSITIONS, Ledger

sys.path.insert(0, str(Path(__file__).parent))

from cursor_cases import Numbers, Streaming, cursor


class Every(PromptFilter):
    name = "every"

    def __init__(self, divisor):
        super().__init__()
        self.divisor = divisor

    def skip(self, task, rendered):
        return None if int(rendered.text) % self.divisor == 0 else "no multiple"


def restored(make, state):
    walk = make()
    walk.restore(json.loads(json.dumps(state)))
    return walk


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["give_back", "end"]), st.integers(0, 20)),
        st.tuples(st.just("checkpoint"), st.just(0)),
    ),
    max_size=40,
)


@given(
    st.sampled_from([Numbers, Streaming]),
    st.integers(1, 9),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 3)),
    st.booleans(),
    OPERATIONS,
)
def test_a_restored_walk_gives_what_an_unbroken_one_gives(kind, size, divisor, epochs, shuffle, operations):
    def make():
        return cursor(kind(size), filters={"every": Every(divisor)}, seed=5, epochs=epochs, shuffle=shuffle)

    unbroken, resumed = make(), make()
    out = []
    for operation, value in operations:
        if operation == "take":
            taken = [unbroken.take() for _ in range(value)]
            assert [resumed.take() for _ in range(value)] == taken
            out += [item for item in taken if item is not None]
        elif operation == "checkpoint":
            resumed = restored(make, resumed.state(out))
            assert [resumed.take() for _ in out] == out
        elif out:
            dispatch = out.pop(value % len(out))
            if operation == "give_back":
                unbroken.give_back(dispatch)
                resumed.give_back(dispatch)
        assert resumed.skipped == unbroken.skipped
        assert resumed.state(out) == unbroken.state(out)


@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_however_often_a_run_is_killed_no_task_is_lost_and_none_ends_twice(size, epochs, data):
    """A run that is killed between checkpoints repeats what it did since the last one, and nothing else."""
    walk, ended = cursor(Numbers(size), epochs=epochs), []
    saved = (walk.state([]), [])
    in_flight = []
    for _ in range(data.draw(st.integers(0, 30))):
        event = data.draw(st.sampled_from(["take", "end", "give_back", "checkpoint", "kill"]))
        if event == "take" and (found := walk.take()):
            in_flight.append(found)
        elif event == "checkpoint":
            saved = (walk.state(in_flight), list(ended))
        elif event == "kill":
            walk, ended, in_flight = cursor(Numbers(size), epochs=epochs), list(saved[1]), []
            walk.restore(saved[0])
        elif event in ("end", "give_back") and in_flight:
            dispatch = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            if event == "end":
                ended.append(dispatch)
            else:
                walk.give_back(dispatch)
    rest = list(iter(walk.take, None))
    rows = [item.task.source_row for item in (*ended, *in_flight, *rest)]
    assert sorted(rows) == sorted(list(range(size)) * epochs)


def test_a_checkpoint_between_repeats_keeps_the_ones_that_are_still_to_come():
    def make():
        return cursor(Numbers(6), shuffle=False)

    walk = make()
    out = [walk.take() for _ in range(4)]
    walk = restored(make, walk.state(out[1:]))
    assert walk.take() == out[1]
    walk.give_back(out[0])
    walk = restored(make, walk.state([out[1]]))
    assert [walk.take() for _ in range(3)] == out[1:]
    again = walk.take()
    assert (again.task, again.attempt) == (out[0].task, 1)
    assert walk.take().task.source_row == 4


def test_a_place_tells_epoch_and_index():
    walk = cursor(Numbers(3), seed=1)
    places = [(item.place, item.task.source_row) for item in (walk.take() for _ in range(5))]
    assert [place.epoch for place, _ in places] == [0, 0, 0, 1, 1]
    assert all(place.index == row for place, row in places)


def test_the_check_for_nothing_to_dispatch_counts_what_came_before_the_checkpoint():
    def make():
        return cursor(Numbers(5), filters={"every": Every(5)}, shuffle=False)

    walk = make()
    assert walk.take().task.source_row == 0
    walk = restored(make, walk.state([]))  # the rest of this epoch is skipped
    following = walk.take()
    assert (following.task.source_row, following.attempt, following.place.epoch) == (0, 1, 1)


def test_a_restored_walk_still_finds_that_nothing_can_be_dispatched():
    walk = cursor(Numbers(3), epochs=2)
    out = [walk.take() for _ in range(3)]
    other = cursor(Numbers(3), max_prompt_len=0)
    other.restore(walk.state(out))
    assert other.skipped == {"too_long": 3}, "what was unfinished is looked at anew"
    with pytest.raises(TaskError, match="too_long: 6"):
        other.take()


def test_more_epochs_go_on_where_the_data_had_run_out():
    walk = cursor(Numbers(4), epochs=1, seed=3)
    assert len(list(iter(walk.take, None))) == 4
    longer = cursor(Numbers(4), epochs=2, seed=3)
    longer.restore(walk.state([]))
    unbroken = cursor(Numbers(4), epochs=2, seed=3)
    assert list(iter(longer.take, None)) == list(iter(unbroken.take, None))[4:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, r"cursor.schema: 2; this version reads 1"),
        ({"position": 7}, r"cursor.position: 7 is beyond the 6 tasks of 'numbers'"),
        ({"position": -1}, r"cursor.position: -1 is no whole number"),
        ({"position": 2**64}, r"cursor.position: 18446744073709551616 is no whole number"),
        ({"epoch": "1"}, r"cursor.epoch: '1' is no whole number"),
        ({"epoch": True}, r"cursor.epoch: True"),
        ({"again": None}, r"cursor.again: None is no list"),
        ({"again": [{"epoch": 0, "index": 6, "attempt": 0}]}, r"cursor.place: 6 is beyond the 6 tasks"),
        ({"again": [{"epoch": 0, "index": 1}]}, r"cursor.again: None is no whole number"),
        ({"given_back": [3]}, r"cursor.given_back: 3 is no table"),
        ({"attempts": {"numbers:1": -2}}, r"cursor.attempts.numbers:1: -2"),
        ({"order": None}, r"cursor.order: None is no table"),
    ],
)
@pytest.mark.parametrize("kind", [Numbers, Streaming])
def test_a_state_that_does_not_fit_is_named(kind, changes, message):
    walk = cursor(kind(6), epochs=1)
    walk.take()
    with pytest.raises(CheckpointError, match=message):
        restored(lambda: cursor(kind(6), epochs=1), walk.state([]) | changes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (cursor(Numbers(7)), "cursor.order.size: 6 in the checkpoint, 7 now"),
        (cursor(Numbers(6), seed=1), "cursor.order.seed: 0 in the checkpoint, 1 now"),
        (cursor(Numbers(6), shuffle=False), "cursor.order"),
        (cursor(Streaming(6)), "cursor.order.size: 6 in the checkpoint, None now"),
    ],
)
def test_a_walk_of_another_order_is_refused(other, message):
    with pytest.raises(CheckpointError, match=message):
        other.restore(cursor(Numbers(6)).state([]))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)), st.data())
def test_no_state_fails_in_another_way_than_by_its_name(value, data):
    state = cursor(Numbers(3)).state([])
    state[data.draw(st.sampled_from(sorted(state)))] = value
    walk = cursor(Numbers(3))
    try:
        walk.restore(state)
    except CheckpointError as error:
        assert str(error).startswith("cursor")


def filled_ledger(ended, in_flight, queued):
    ledger = Ledger()
    for name in ended:
        ledger.end(ledger.dispatch(), name)
    for number in range(in_flight + queued):
        index = ledger.dispatch()
        if number < queued:
            ledger.queue(index)
    return ledger


@given(st.lists(st.sampled_from(DISPOSITIONS)), st.integers(0, 5), st.integers(0, 5))
def test_a_restored_ledger_adds_up_and_repeats_no_index(ended, in_flight, queued):
    before = filled_ledger(ended, in_flight, queued)
    after = Ledger()
    after.restore(json.loads(json.dumps(before.state())))
    summary = after.summary()
    assert summary == before.summary() | {
        "in_flight": 0,
        "queued": 0,
        "returned": ended.count("returned") + in_flight + queued,
    }
    assert summary["dispatched"] == sum(summary.values()) - summary["dispatched"]
    assert after.unfinished() == []
    assert after.dispatch() == before.dispatched


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"consumed": 3}, "do not add up"),
        ({"consumed": -1}, "ledger.consumed: -1"),
        ({"lost": 0}, "lost are missing or unknown"),
    ],
)
def test_counts_that_cannot_be_are_refused(changes, message):
    state = filled_ledger(["consumed", "expired"], 1, 2).state() | changes
    with pytest.raises(CheckpointError, match=message):
        Ledger().restore(state)


def test_the_comparison_above_can_fail():
    """A walk that loses its place is told from an unbroken one."""
    walk, other = (cursor(Numbers(50), seed=2) for _ in range(2))
    for _ in range(10):
        walk.take()
    other.restore(walk.state([]) | {"position": 1})
    assert other.take() != walk.take()
