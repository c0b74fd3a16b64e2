"""Where a rollout is resumed, and with which prompt."""

import pytest
from pydantic import ValidationError
from replay_forests import answered, hand_made, node, record_of, unchanged

from reroll_replay_continue.derivation import Continue, ContinueConfig


def resumed(nodes, anchor="compaction", seed=0):
    """The contents of every prompt that is derived."""
    derivation, record = Continue(ContinueConfig(anchor=anchor)), record_of(nodes)
    anchors = unchanged(record, lambda record: derivation.anchors(record, seed))
    prompts = [unchanged(record, lambda record, at=at: derivation.prompt(record, at)) for at in anchors]
    return [[message["content"] for message in prompt] for prompt in prompts]


def test_one_task_for_each_restart_with_what_the_model_saw_there():
    assert resumed(hand_made()) == [["be brief", "summary"]]
    nodes = [*hand_made(), node(0, "user", "second summary"), node(14, "assistant", "end")]
    assert resumed(nodes) == [["be brief", "summary"], ["be brief", "second summary"]]


def test_a_restart_that_is_a_new_root_of_several_messages_is_resumed_after_the_last():
    nodes = [*answered(), node(None, "user", "summary"), node(2, "user", "go on"), node(3, "assistant", "5")]
    assert resumed(nodes) == [["summary", "go on"]]


def test_a_rollout_that_was_never_compacted_gives_no_task():
    assert resumed(answered()) == []
    assert resumed(answered(), "tool-call") == []


def test_one_tool_result_a_rollout_chosen_by_the_seed():
    first = ["be brief", "question", "", "A", "B"]
    found = [resumed(hand_made(), "tool-call", seed) for seed in range(6)]
    assert found == [resumed(hand_made(), "tool-call", seed) for seed in range(6)]
    assert all(len(prompts) == 1 for prompts in found)
    assert {tuple(prompts[0]) for prompts in found} == {tuple(first), (*first, "let me see", "C")}


def test_a_root_without_the_parent_key_is_resumed_all_the_same():
    nodes = hand_made()
    del nodes[0]["parent"], nodes[8]["parent"]
    assert resumed(nodes) == [["be brief", "summary"]]


def test_another_anchor_is_refused():
    with pytest.raises(ValidationError, match="tool-call"):
        ContinueConfig(anchor="tool_call")
