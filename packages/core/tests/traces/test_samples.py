"""The samples of a whole collection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Group, Node, RenderedPrompt, Task, Trace, VersionSpan
from reroll.traces.samples import collection_samples
from reroll.training.advantages import Grpo, ReinforcePlusPlusBaseline

TASK = Task([{"role": "user", "content": "q"}], {"v": "1"}, "set", 3, "p3")


def trace_of(tokens=(5, 6), reason="stop", prompt=(1, 2, 3), mask=None):
    size = len(tokens)
    nodes = [
        Node(None, TASK.prompt[0], False, list(prompt), [False] * len(prompt)),
        Node(0, {"role": "assistant", "content": "a"}, True, list(tokens), mask or [True] * size, [-0.5] * size,
             [VersionSpan(4, 0, size)], reason, 99),
    ]  # fmt: skip
    return Trace("t", TASK, nodes, is_completed=True)


def group_of(rewards, traces=None, group_index=0):
    traces = traces or [trace_of() for _ in rewards]
    return Group(
        "obs", group_index, 1, 7, TASK, RenderedPrompt("q", (1, 2, 3), "", ""), traces, list(range(len(traces))),
        {"v": 1.0}, list(rewards),
    )  # fmt: skip


class Counting(Grpo):
    def __init__(self):
        super().__init__()
        self.asked = []

    def batch(self, groups):
        self.asked.append(groups)
        return super().batch(groups)


def test_the_estimator_is_asked_once_for_every_group_and_slots_stay():
    counting = Counting()
    samples = collection_samples([group_of([1.0, None, 0.0]), group_of([3.0, 3.0])], [0, 9], counting)
    assert counting.asked == [[[1.0, 0.0], [3.0, 3.0]]]
    assert [(sample.slot, sample.advantage) for sample in samples] == [(0, 0.5), (2, -0.5), (9, 0.0), (10, 0.0)]
    with pytest.raises(ValueError, match="zip"):
        collection_samples([group_of([1.0, 0.0])], [0, 3], Grpo())


def test_an_estimator_may_look_beyond_a_group():
    groups = [group_of([0.0, 2.0]), group_of([0.0, 4.0])]
    scale = (10 / 3) ** 0.5 + 1e-6
    found = [sample.advantage for sample in collection_samples(groups, [0, 2], ReinforcePlusPlusBaseline())]
    assert found == pytest.approx([-1 / scale, 1 / scale, -2 / scale, 2 / scale])


def test_truncated_responses_are_left_out_but_their_rewards_count():
    traces = [trace_of(), trace_of(reason="length"), trace_of()]
    group = group_of([1.0, 0.0, 0.5], traces)
    kept = collection_samples([group], [4], Grpo(), mask_truncated=True)
    assert [(sample.slot, sample.advantage) for sample in kept] == [(4, 0.5), (6, 0.0)]
    assert [sample.slot for sample in collection_samples([group], [4], Grpo())] == [4, 5, 6]


def test_penalties_are_taken_off_before_advantages_and_the_reward_stays():
    samples = collection_samples([group_of([1.0, 1.0])], [6], Grpo(), penalties={7: 0.5})
    assert [sample.advantage for sample in samples] == [0.25, -0.25]
    assert [sample.reward for sample in samples] == [1.0, 1.0]
    plain = collection_samples([group_of([1.0, 1.0])], [6], Grpo(), penalties={})
    assert [sample.advantage for sample in plain] == [0.0, 0.0]


def test_responses_that_no_token_of_can_be_trained_on_are_left_out():
    """A first token is never predicted; nothing counts for a response whose only active token it is."""
    first_only = trace_of(tokens=(5, 6), prompt=(), mask=[True, False])
    none = trace_of(mask=[False, False])
    group = group_of([1.0, 0.0, 0.5], [trace_of(), none, first_only])
    samples = collection_samples([group], [0], Grpo())
    assert [(sample.slot, sample.advantage) for sample in samples] == [(0, 0.5)]


def said(parent, *tokens):
    size = len(tokens)
    message = {"role": "assistant", "content": "a"}
    return Node(
        parent, message, True, list(tokens), [True] * size, [-0.5] * size, [VersionSpan(4, 0, size)], "stop", 99
    )


def asked(parent, *tokens):
    return Node(parent, {"role": "user", "content": "q"}, False, list(tokens), [False] * len(tokens))


def test_a_token_that_branches_share_carries_loss_in_the_first_of_them_alone():
    forked = Trace("t", TASK, [asked(None, 1, 2), said(0, 3, 4), asked(1, 5), said(2, 6), asked(1, 7), said(4, 8)])
    first, second = collection_samples([group_of([1.0, 0.0], [forked, trace_of()])], [0], Grpo())[:2]
    assert (first.token_ids, first.loss_mask) == ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True])
    assert (second.token_ids, second.loss_mask) == ([1, 2, 3, 4, 7, 8], [False] * 5 + [True])
    assert second.rollout_logprobs == [0.0, 0.0, -0.5, -0.5, 0.0, -0.5]
    assert (first.slot, second.slot, second.advantage) == (0, 0, first.advantage)


def test_a_branch_that_says_nothing_new_gives_no_sample():
    forked = Trace("t", TASK, [asked(None, 1), said(0, 3), said(1, 4), asked(1, 5), asked(1, 6)])
    samples = collection_samples([group_of([1.0], [forked])], [0], Grpo())
    assert [sample.token_ids for sample in samples] == [[1, 3, 4]]


def test_roots_of_their_own_are_samples_of_their_own():
    """As after a compaction: the conversation is repeated without loss, and goes on."""
    trace = Trace("t", TASK, [asked(None, 1), said(0, 3), asked(None, 1, 3, 5), said(2, 6)])
    samples = collection_samples([group_of([1.0], [trace])], [0], Grpo())
    assert [(sample.token_ids, sample.loss_mask) for sample in samples] == [
        ([1, 3], [False, True]),
        ([1, 3, 5, 6], [False, False, False, True]),
    ]


@st.composite
def forests(draw):
    """Traces of any shape whose sampled tokens all have another log-probability."""
    nodes = []
    for index in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        if parent is not None and draw(st.booleans()):
            node = said(parent, *range(draw(st.integers(0, 3))))
            node.logprobs = [-float(100 * index + place + 1) for place in range(len(node.token_ids))]
            nodes.append(node)
        else:
            nodes.append(asked(parent, *range(draw(st.integers(1, 3)))))
    return Trace("t", TASK, nodes)


@given(forests())
def test_over_all_samples_of_a_trace_every_sampled_token_is_trained_on_once(trace):
    samples = collection_samples([group_of([1.0], [trace])], [0], Grpo())
    active = [
        value
        for sample in samples
        for value, carries in zip(sample.rollout_logprobs, sample.loss_mask, strict=True)
        if carries
    ]
    assert sorted(active) == sorted(value for node in trace.nodes for value in node.logprobs)
