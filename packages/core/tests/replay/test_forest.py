"""The graph of a record's messages: the main conversation, restarts, and where a rollout can be resumed."""

import pytest
from hypothesis import given
from replay_forests import answered, call, forests, hand_made, node, unchanged

from reroll.replay import Forest, check, conversation, dangling, without_dangling


def contents(nodes, leaf=None):
    return [message["content"] for message in conversation({"nodes": nodes}, leaf)]


def test_the_hand_made_forest_has_two_roots_and_its_main_conversation_is_the_first_tree():
    forest = Forest(hand_made())
    assert forest.roots == [0, 8]
    assert forest.main == [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13]
    assert forest.path(11) == [0, 1, 2, 3, 4, 6, 11]


def test_a_fork_is_a_restart_unless_it_is_a_second_try_a_repeated_result_or_a_sub_agents():
    forest = Forest(hand_made())
    assert forest.children[0] == [1, 12] and forest.children[4] == [6, 7] and forest.children[3] == [4, 5]
    assert forest.restarts == [12]
    assert forest.compaction_anchors() == [12]


def test_the_final_leaf_is_on_the_main_conversation():
    nodes = hand_made()
    assert Forest(nodes).final_leaf == 13
    assert contents(nodes) == ["be brief", "summary", "answer"]
    nodes.append(node(10, "assistant", "a sub-agent's last word"))
    assert Forest(nodes).final_leaf == 13


def test_results_are_anchors_where_no_call_is_open_one_a_turn():
    assert Forest(hand_made()).tool_anchors() == [4, 11]


def test_partial_parallel_calls_are_no_anchor():
    assert Forest([node(None, "user", "q"), node(0, "assistant", calls="ab"), node(1, "tool")]).tool_anchors() == []


def test_a_call_that_was_never_answered_leaves_no_anchor_after_it():
    nodes = [node(None, "user", "q"), node(0, "assistant", calls="a"), node(1, "assistant", calls="b")]
    nodes.append(node(2, "tool", answers="b"))
    assert Forest(nodes).tool_anchors() == []


def test_seeds_are_told_by_role_and_by_who_sampled():
    """An example in the prompt is no place to resume at, a tool turn is no compaction, a user's is."""
    example = [node(None, "user", "q"), node(0, "assistant", calls="a", sampled=False), node(1, "tool", answers="a")]
    nodes = [*example, node(2, "user", "q"), node(3, "assistant", "x"), node(2, "tool", "a"), node(0, "user", "s")]
    forest = Forest([*nodes, node(6, "assistant", "y")])
    assert forest.tool_anchors() == []
    assert forest.compaction_anchors() == [6]


def test_a_result_without_an_issuing_call_is_no_anchor():
    nodes = [node(None, "user", "q"), node(0, "tool", "x", answers="a"), node(1, "assistant", calls="b")]
    assert Forest([*nodes, node(2, "tool", answers="z")]).tool_anchors() == []


@pytest.mark.parametrize("first_is_continued", [True, False])
def test_a_repeated_result_gives_one_anchor_the_one_that_was_continued(first_is_continued):
    nodes = [node(None, "user", "q"), node(0, "assistant", calls="a")]
    nodes += [node(1, "tool", answers="a"), node(1, "tool", answers="a")]
    continued = 2 if first_is_continued else 3
    assert Forest([*nodes, node(continued, "assistant", "x")]).tool_anchors() == [continued]
    assert Forest(nodes).tool_anchors() == [2]


def test_a_repeated_result_in_one_line_gives_one_anchor():
    nodes = [node(None, "user", "q"), node(0, "assistant", calls="a")]
    nodes += [node(1, "tool", answers="a"), node(2, "tool", answers="a"), node(3, "assistant", "x")]
    assert Forest(nodes).tool_anchors() == [2]


def restarted(system="be brief", last="answer", calls=()):
    """A main tree, and a new root with two messages before the model speaks."""
    main = [node(None, "system", "be brief"), node(0, "user", "q"), node(1, "assistant", last, calls=calls)]
    return [*main, node(None, "system", system), node(3, "user", "summary"), node(4, "user", "go on")]


def test_a_compaction_that_starts_a_new_root_is_found():
    nodes = [*restarted(), node(5, "assistant", "done")]
    forest = Forest(nodes)
    assert (forest.main_roots, forest.restarts) == ([0, 3], [3])
    assert contents(nodes) == ["be brief", "summary", "go on", "done"]


def test_a_restart_of_several_messages_is_whole():
    nodes = [*restarted(), node(5, "assistant", "done")]
    assert Forest(nodes).compaction_anchors() == [5]
    assert contents(nodes, 5) == ["be brief", "summary", "go on"]


def test_a_restart_after_which_nothing_was_sampled_counts_if_it_ends_in_a_users_or_a_tools_turn():
    assert Forest(restarted()).compaction_anchors() == [5]
    assert Forest(restarted()[:4]).compaction_anchors() == []


@pytest.mark.parametrize(
    "nodes",
    [
        [*restarted(), node(5, "assistant", "x"), node(2, "user", "more")],
        restarted(last="", calls="a"),
        restarted(system="you are a sub-agent"),
    ],
    ids=["the main conversation goes on", "a call waits for it", "it has other instructions"],
)
def test_a_new_root_that_is_a_sub_agents_is_no_restart(nodes):
    assert Forest(nodes).main_roots == [0]
    assert Forest(nodes).compaction_anchors() == []


def test_a_restart_of_a_restart_is_one_as_well():
    nodes = [*restarted(), node(5, "assistant", "done"), node(None, "user", "second summary")]
    nodes += [node(7, "assistant", "end")]
    assert Forest(nodes).compaction_anchors() == [5, 7]
    assert Forest(nodes).final_leaf == 8


def test_two_restarts_that_share_their_instructions_are_two():
    nodes = [*restarted(), node(5, "assistant", "done"), node(3, "user", "second summary")]
    assert Forest(nodes).compaction_anchors() == [5, 7]


def rendered_again():
    """reroll's own marks: the tool's result is first seen in a branch that repeats the conversation."""
    return [
        node(None, "user", "q"),
        node(0, "assistant", calls="a"),
        node(None, "user", "q", origin="rendering"),
        node(2, "assistant", calls="a", sampled=False),
        node(3, "tool", "A", answers="a"),
        node(4, "assistant", calls="b"),
        node(5, "tool", "B", answers="b"),
        node(None, "user", "q", origin="rendering"),
        node(7, "assistant", calls="a", sampled=False),
        node(8, "tool", "A", answers="a"),
        node(9, "assistant", calls="b", sampled=False),
        node(10, "tool", "B", answers="b"),
        node(11, "assistant", "end"),
    ]


def test_a_branch_that_was_rendered_again_is_the_same_conversation_and_no_restart():
    forest = Forest(rendered_again())
    assert forest.compaction_anchors() == []
    assert forest.main == list(range(13))
    assert contents(rendered_again()) == ["q", "", "A", "", "B", "end"]


def test_a_branch_that_was_rendered_again_gives_no_turn_a_second_anchor():
    assert Forest(rendered_again()).tool_anchors() == [4, 11]


def test_marks_decide_where_there_are_any():
    nodes = [node(None, "user", "q"), node(0, "assistant", "x"), node(0, "user", "s", origin="compaction")]
    nodes += [node(2, "assistant", "y"), node(0, "user", "no restart"), node(None, "user", "no restart")]
    forest = Forest(nodes)
    assert (forest.main_roots, forest.restarts) == ([0], [2])


def test_a_late_result_is_no_final_state():
    """The model had gone on without it."""
    nodes = [node(None, "user", "q"), node(0, "assistant", calls="a"), node(1, "tool", "A", answers="a")]
    nodes += [node(2, "assistant", "end")]
    assert Forest([*nodes, node(1, "tool", "A", answers="a")]).final_leaf == 3
    assert Forest([*nodes, node(2, "tool", "A", answers="a")]).final_leaf == 3


def test_a_root_without_the_parent_key_is_a_root():
    nodes = hand_made()
    del nodes[0]["parent"], nodes[8]["parent"]
    assert Forest(nodes).roots == [0, 8]
    assert Forest(nodes).compaction_anchors() == [12]


@pytest.mark.parametrize("parent", [1, 2, -1, True, "0", 0.0])
def test_a_parent_that_is_no_earlier_node_is_named(parent):
    with pytest.raises(ValueError, match="node 1 has the parent"):
        Forest([node(None, "user", "q"), node(parent, "assistant", "x")])


def test_messages_are_given_in_the_templates_form():
    flat = {"id": "a", "name": "add", "arguments": '{"a": 1}'}
    nodes = [node(None, "user", "q"), node(0, "assistant", None, calls=[flat])]
    assert conversation({"nodes": nodes})[1] == {"role": "assistant", "content": "", "tool_calls": [call("a")]}


def test_a_conversation_of_100_000_messages_is_walked():
    nodes = [node(None, "user", "q")]
    while len(nodes) < 100_000:
        nodes += [node(len(nodes) - 1, "assistant", calls="a"), node(len(nodes), "tool", answers="a")]
    forest = Forest(nodes)
    assert len(forest.tool_anchors()) == len(nodes) // 2
    assert forest.compaction_anchors() == []
    assert forest.final_leaf == len(nodes) - 1
    assert len(without_dangling(conversation({"nodes": nodes}))) == len(nodes)


def test_a_restart_of_100_000_messages_is_walked():
    nodes = [*answered(), *(node(index - 1 if index > 2 else None, "user", "s") for index in range(2, 100_000))]
    assert Forest(nodes).compaction_anchors() == [len(nodes) - 1]
    forks = [node(0, "user", "s") for _ in range(50_000)]
    assert Forest([*nodes, *forks]).compaction_anchors() == list(range(100_000, 150_000))


@given(forests())
def test_anchors_are_nodes_of_the_main_conversation_and_each_comes_once(nodes):
    forest = unchanged({"nodes": nodes}, lambda record: Forest(record["nodes"]))
    for anchors in (forest.compaction_anchors(), forest.tool_anchors()):
        assert len(set(anchors)) == len(anchors)
        assert set(anchors) <= set(forest.main)
        assert not any(forest.sampled(anchor) for anchor in anchors)
    assert forest.final_leaf in forest.main and not forest.children[forest.final_leaf]


@given(forests())
def test_a_conversation_up_to_a_tool_anchor_needs_no_repair(nodes):
    for anchor in Forest(nodes).tool_anchors():
        messages = conversation({"nodes": nodes}, anchor)
        assert dangling(messages) == []
        assert check(without_dangling(messages)) is None
