"""What a saved line says of itself."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_forests import answered, node, record_of

from reroll.api import Decision, Group, Node, RenderedPrompt, Task, Trace
from reroll.replay import Forest, depth, innermost, is_derived, original_reward, stamp, usable
from reroll.replay.records import anchor_seed, identity, read_line, unusable
from reroll.traces.saved import FILE, SavedGroup, save_groups, step_directory


def peers(**more):
    """A line in the shape of the reference, from a writer that drops nulls."""
    nodes = answered()
    del nodes[0]["parent"]
    said = {"kind": "train", "env_name": "math", "group_id": "g", "policy_version": 3, "is_filtered": False}
    return {
        "id": "p",
        "task": {"prompt": "q"},
        "nodes": nodes,
        "rewards": {"right": 0.5, "form": 0.25},
        "info": {"prime_rl": said},
        **more,
    }


def test_reroll_s_own_line_and_a_peers_are_stamped_alike(tmp_path):
    task = Task("2 + 2?", {}, "sums", 0, "0")
    nodes = [Node(None, {"role": "user", "content": "2 + 2?"}, False, [1], [False])]
    nodes += [Node(0, {"role": "assistant", "content": "4"}, True, [2], [True])]
    group = Group(
        "obs", 0, 0, 0, task, RenderedPrompt("q", (1,), "", ""), [Trace("t", task, nodes)], [7], {"v": 1.0}, [0.5]
    )
    save_groups(tmp_path, 0, [SavedGroup(group, Decision("passed"), "consumed")])
    record = read_line((step_directory(tmp_path, 0) / FILE).read_bytes())
    assert usable(record) and not is_derived(record)
    assert (stamp(record).kind, stamp(record).group_id, stamp(record).is_filtered) == ("train", "obs", False)
    assert original_reward(record) == 0.5
    assert stamp(peers()) == ("train", "math", "g", 3, False)
    assert usable(peers()) and Forest(peers()["nodes"]).final_leaf == 1


def test_a_line_without_stamp_says_nothing():
    assert stamp({}) == stamp({"info": None}) == stamp({"info": {"reroll": 3}}) == (None,) * 5


@pytest.mark.parametrize(
    ("line", "why"),
    [(b"", "no JSON"), (b"{", "no JSON"), (b"[1]", "list"), (b'{"a": 1} x', "no JSON"), (b'{"a": "\xff"}', "no JSON")],
)
def test_a_line_that_is_no_object_is_told(line, why):
    with pytest.raises(ValueError, match=why):
        read_line(line)


def test_lone_surrogates_and_deep_lineages_are_read():
    deep = json.dumps({"task": None, "text": "\ud800"})
    for _ in range(250):
        deep = f'{{"source_task": {deep}}}'
    assert "source_task" in read_line(deep.encode())
    assert read_line(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    with pytest.raises(ValueError, match="no JSON"):
        read_line(b"[" * 100_000)


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.none())))
def test_what_json_writes_is_read_back(table):
    assert read_line(json.dumps(table).encode()) == table


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (None, "no nodes"),
        ([], "no nodes"),
        (["x"], "node 0 has no message"),
        ([{"message": {"content": "q"}}], "node 0 has no message"),
        ([node(None, "user"), node(1, "assistant")], "node 1 has the parent 1"),
        ([node(None, "user"), node(True, "assistant")], "node 1 has the parent True"),
        ([node(None, "user", "q")], "the model said nothing"),
    ],
)
def test_a_record_from_which_nothing_can_be_derived_is_told_why(nodes, why):
    assert why in unusable(record_of(nodes))
    assert not usable(record_of(nodes))


def test_a_failed_rollout_is_not_usable():
    assert "failed" in unusable(record_of(answered(), errors=[{"where": "engine", "message": "gone"}]))


@pytest.mark.parametrize(
    ("task", "derived"),
    [
        ({"source_task": {}, "source_id": "x"}, True),
        ({"source_task": {}, "source_id": None}, False),
        ({"source_task": {}}, False),
        ({"source_task": None, "source_id": "x"}, False),
        ({"kind": "replay"}, False),
        (None, False),
    ],
)
def test_a_record_is_derived_by_its_lineage_alone(task, derived):
    assert is_derived({"task": task}) is derived


def test_a_lineage_of_two_levels_unwraps_to_the_original():
    original = {"prompt": "2 + 2?"}
    once = {"prompt": "check", "source_id": "a", "source_task": original}
    twice = {"prompt": "check again", "source_id": "b", "source_task": once}
    assert innermost(twice) is innermost(once) is innermost(original) is original
    assert (depth(original), depth(once), depth(twice)) == (0, 1, 2)


@pytest.mark.parametrize(
    ("record", "reward"),
    [
        (peers(), 0.75),
        (peers(rewards={}), None),
        (peers(rewards={"v": None}), None),
        (peers(rewards={"v": "NaN"}), None),
        (peers(rewards={"v": float("nan")}), None),
        (peers(rewards={"v": True}), None),
        (peers(rewards={"v": 10**400}), None),
        (record_of([], reward=0.5, rewards={"v": 9.0}), 0.5),
        (record_of([], reward=None, rewards={"v": 9.0}), None),
    ],
)
def test_the_reward_is_the_stamps_else_the_sum_and_none_where_nothing_was_scored(record, reward):
    assert original_reward(record) == reward


def test_records_without_an_id_have_seeds_of_their_own():
    lines = [json.dumps({"nodes": answered(str(number))}).encode() for number in range(50)]
    identities = {identity(json.loads(line), line) for line in lines}
    assert len(identities) == len({anchor_seed(0, found) for found in identities}) == 50
    assert identity({"id": ""}, b"{}\n") == identity({}, b"{}") != identity({}, b"[]")


def test_the_users_seed_changes_every_records_seed():
    assert len({anchor_seed(seed, "r") for seed in range(50)}) == 50
    assert anchor_seed(1, "r") == 3564650494110237058
