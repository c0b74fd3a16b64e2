"""The buffer of finished groups: nothing is lost or doubled, nothing grows too old that need not."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Decision, Group, Node, RenderedPrompt, Task, Trace, VersionSpan
from reroll.rollouts.buffer import Collection, CollectionSize, FinishedGroup, GroupBuffer
from reroll.tasks.cursor import Dispatch

TASK = Task("q", {"v": "1"}, "set", 0, "0")
PROMPT = RenderedPrompt("q", (1,), "", "")


def trace(*versions, completed=True):
    """A response with a token of each version."""
    node = Node(None, {"role": "assistant", "content": "a"}, True, [1] * len(versions), [True] * len(versions))
    node.weight_versions = [VersionSpan(version, index, index + 1) for index, version in enumerate(versions)]
    return Trace("trace", TASK, [node] if versions else [], is_completed=completed)


def finished(index, *versions, outcome="passed", completed=True):
    """A group with a response of each version."""
    traces = [trace(version, completed=completed) for version in versions] or [trace(completed=completed)]
    group = Group("observation", index, 0, 0, TASK, PROMPT, traces, [0] * len(traces), {})
    return FinishedGroup(group, Decision(outcome), Dispatch(TASK, PROMPT, 0))


def oldest(item):
    return min((version for each in item.group.traces for version in each.weight_versions), default=0)


@st.composite
def sizes(draw):
    batch, updates = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    return CollectionSize(batch, batch + draw(st.integers(0, 6)), updates, updates - 1 + draw(st.integers(0, 9)))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, 12), max_size=3), st.sampled_from(["passed", "filtered"])),
        st.tuples(st.just("expire"), st.integers(0, 20)),
        st.tuples(st.just("take")),
    ),
    max_size=40,
)


@given(sizes(), st.integers(0, 8), STEPS)
def test_every_group_leaves_once_and_the_oldest_first(size, more, steps):
    buffer = GroupBuffer(size, size.most + more)
    entered, left = [], []
    for kind, *values in steps:
        before = list(buffer.groups)
        if kind == "put" and not buffer.full:
            entered.append(finished(len(entered), *values[0], outcome=values[1]))
            buffer.put(entered[-1])
        elif kind == "expire":
            (version,) = values
            stale = buffer.expire(version)
            assert stale == [item for item in before if size.is_stale(item.group, version)]
            left += stale
        elif kind == "take":
            ready = buffer.ready
            taken = buffer.take()
            check_taken(size, before, taken, ready)
            left += taken
        assert len(buffer) == len(buffer.groups) <= buffer.capacity
        assert buffer.full == (len(buffer) == buffer.capacity)
        assert buffer.passed == sum(item.passed for item in buffer.groups)
        assert Counter(map(id, entered)) == Counter(map(id, [*left, *buffer.groups]))


def check_taken(size, before, taken, ready):
    """Full, closed, or all that there is; nothing older stays behind; in the order of dispatch."""
    passed = sum(item.passed for item in taken)
    assert passed <= size.batch and len(taken) <= size.most
    if ready:
        assert passed == size.batch or len(taken) == size.most
    else:
        assert len(taken) == len(before)
    rank = {id(item): (oldest(item), item.group.group_index) for item in before}
    gone = set(map(id, taken))
    assert sorted(rank, key=rank.__getitem__)[: len(taken)] == sorted(gone, key=rank.__getitem__)
    if passed == size.batch:
        assert max(taken, key=lambda item: rank[id(item)]).passed, "a full collection takes nothing more"
    assert [item.group.group_index for item in taken] == sorted(item.group.group_index for item in taken)


def test_a_full_buffer_takes_nothing():
    buffer = GroupBuffer(CollectionSize(1, 1, 1, 0), 1)
    buffer.put(finished(0, 0))
    with pytest.raises(AssertionError):
        buffer.put(finished(1, 0))


@pytest.mark.parametrize(("outcomes", "ready"), [("", False), ("p", False), ("pp", True), ("fff", True), ("pff", True)])
def test_a_collection_is_ready_when_it_is_full_or_closed(outcomes, ready):
    buffer = GroupBuffer(CollectionSize(2, 3, 1, 0), 9)
    for index, letter in enumerate(outcomes):
        buffer.put(finished(index, 0, outcome={"p": "passed", "f": "filtered"}[letter]))
    assert buffer.ready == ready


def test_a_group_is_as_old_as_its_oldest_token():
    size = CollectionSize(2, 2, 1, 2)
    item = finished(0, 5, 3, 4)
    assert not size.is_stale(item.group, 5)
    assert size.is_stale(item.group, 6)
    item.group.traces = [trace(7), trace(6, 7)]
    assert not size.is_stale(item.group, 8)
    assert size.is_stale(item.group, 9)


@given(sizes(), st.integers(0, 20))
def test_ahead_is_the_most_collections_that_cannot_grow_too_old(size, start):
    """Groups of weights `start` that are used so many collections later."""
    group = finished(0, start).group
    for lag in range(size.ahead + 1):
        assert not size.is_stale(group, start + lag * size.updates)
    assert size.is_stale(group, start + (size.ahead + 1) * size.updates)
    assert size.ahead >= 0


@given(st.integers(1, 9))
def test_the_smallest_bounds(updates):
    assert CollectionSize(4, 4, updates, updates - 1).ahead == 0
    assert CollectionSize(4, 4, updates, 2 * updates - 2).ahead == 0
    assert CollectionSize(4, 4, updates, 2 * updates - 1).ahead == 1


@given(sizes(), st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 9))
def test_groups_are_spread_evenly_over_the_steps_of_their_collection(size, passing, version):
    groups = [
        finished(i, 0, outcome="passed" if passed else "filtered") for i, passed in enumerate(passing[: size.most])
    ]
    while sum(item.passed for item in groups) > size.batch:
        groups.pop()
    collection = Collection(0, version, size, groups, [])
    places, passed = collection.places(), len(collection.passed)
    assert len(places) == passed
    assert places[:1] in ([], [0])
    assert all(before < after for before, after in pairwise(places))
    assert all(0 <= place < min(size.batch, len(groups)) for place in places)
    if len(groups) >= size.batch and size.batch % size.updates == 0:
        steps = Counter(place * size.updates // size.batch for place in places)
        counts = [steps[number] for number in range(size.updates)]
        assert max(counts) - min(counts) <= 1
    told = collection.staleness()
    assert len(told) == len(groups)
    for item, staleness in zip(groups, told, strict=True):
        first = item.group.staleness(version)
        assert first <= staleness <= first + size.updates - 1


def test_staleness_counts_the_steps_before_the_one_that_uses_the_group():
    collection = Collection(0, 5, CollectionSize(4, 4, 2, 9), [finished(i, 3) for i in range(4)], [])
    assert collection.staleness() == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("outcome", "completed", "disposition"),
    [
        ("passed", True, "consumed"),
        ("filtered", True, "filtered"),
        ("aborted", True, "aborted"),
        ("aborted", False, "failed"),
    ],
)
def test_how_a_group_leaves(outcome, completed, disposition):
    assert finished(0, 1, outcome=outcome, completed=completed).leaves("consumed") == disposition
