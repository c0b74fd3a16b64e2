"""Saved rollouts and the samples cut from traces."""

import json
from pathlib import Path

import pytest

from reroll.api import Decision, Group, Node, RenderedPrompt, Task, Trace, Verdict, VersionSpan
from reroll.traces.samples import collection_samples, optimizer_steps
from reroll.traces.saved import (
    SavedGroup,
    SavedRolloutError,
    is_complete,
    mark_complete,
    read_rollouts,
    save_groups,
    step_directory,
    write_traces,
)
from reroll.training.advantages import Grpo


def trace_of(name, tokens=(5, 6), reward=1.0):
    task = Task([{"role": "user", "content": "q"}], {"v": "1"}, "set", 3, "p3")
    nodes = [
        Node(None, task.prompt[0], False, [1, 2, 3], [False] * 3),
        Node(
            0,
            {"role": "assistant", "content": "ü"},
            True,
            list(tokens),
            [True] * len(tokens),
            [-0.5] * len(tokens),
            [VersionSpan(4, 0, 1), VersionSpan(5, 1, len(tokens))],
            "stop",
            99,
        ),
    ]
    return Trace(name, task, nodes, rewards={"v": reward}, verdicts={"v": Verdict(reward)}, is_completed=True)


def group_of(rewards, group_index=0):
    traces = [trace_of(f"t{number}", reward=reward or 0.0) for number, reward in enumerate(rewards)]
    return Group(
        "obs", group_index, 1, 7, traces[0].task, RenderedPrompt("q", (1, 2, 3), "", ""), traces,
        list(range(len(traces))), {"v": 1.0}, list(rewards),
    )  # fmt: skip


def test_saved_lines_read_back_and_the_marker_comes_last(tmp_path):
    group = group_of([1.0, None])
    assert save_groups(tmp_path, 7, [SavedGroup(group, Decision("filtered", "why"), "filtered")]) == 2
    folder = step_directory(tmp_path, 7)
    assert not is_complete(folder)
    mark_complete(tmp_path, 7, 2)
    assert is_complete(folder)
    first, second = read_rollouts(folder)
    keys = "schema id task nodes rewards metrics info is_completed stop_condition errors timing"
    assert set(first) == set(keys.split())
    stamp = first["info"]["reroll"]
    assert {"kind", "env_name", "group_id", "policy_version", "is_filtered"} <= set(stamp)
    assert (stamp["weight_versions"], stamp["policy_version"], stamp["is_filtered"]) == ([4, 5], 5, True)
    assert (stamp["reward"], second["info"]["reroll"]["reward"]) == (1.0, None)
    assert first["nodes"][1]["weight_versions"] == [[4, 0, 1], [5, 1, 2]]
    assert first["nodes"][1]["message"]["content"] == "ü"
    assert first["nodes"][0]["parent"] is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_told_with_the_files_name():
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        write_traces(Path("/dev/full"), [SavedGroup(group_of([1.0]), Decision("passed"), "consumed")])


def test_a_step_without_marker_is_not_complete(tmp_path):
    save_groups(tmp_path, 0, [SavedGroup(group_of([1.0]), Decision("passed"))])
    assert not is_complete(step_directory(tmp_path, 0))


@pytest.mark.parametrize(
    ("line", "message"), [("{", "no JSON"), ('{"schema": 99}', "schema 99"), ("[]", "schema 'list'")]
)
def test_a_bad_line_is_named(tmp_path, line, message):
    save_groups(tmp_path, 0, [SavedGroup(group_of([1.0]), Decision("passed"))])
    path = step_directory(tmp_path, 0) / "train_rollouts.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(SavedRolloutError, match=rf"train_rollouts.jsonl:2: .*{message}"):
        list(read_rollouts(step_directory(tmp_path, 0)))


def test_samples_keep_ids_as_sampled_and_leave_failures_out():
    group = group_of([1.0, None, 0.0, 0.5])
    samples = collection_samples([group], [8], Grpo())
    assert [sample.slot for sample in samples] == [8, 10, 11]
    assert [sample.advantage for sample in samples] == [0.5, -0.5, 0.0]
    assert samples[0].token_ids == [1, 2, 3, 5, 6]
    assert samples[0].loss_mask == [False, False, False, True, True]
    assert samples[0].rollout_logprobs == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert samples[0].weight_version == 4


def test_steps_are_cut_by_slot_and_empty_ones_dropped():
    samples = collection_samples([group_of([1.0, 0.0]), group_of([1.0, 0.0])], [0, 6], Grpo())
    assert [[sample.slot for sample in step] for step in optimizer_steps(samples, 2)] == [[0, 1], [6, 7]]


def test_staleness_counts_from_the_oldest_token():
    assert group_of([1.0]).staleness(6) == 2


def test_saved_text_is_json_with_every_character(tmp_path):
    save_groups(tmp_path, 0, [SavedGroup(group_of([1.0]), Decision("passed"))])
    text = (step_directory(tmp_path, 0) / "train_rollouts.jsonl").read_text("utf-8")
    assert "ü" in text
    assert len(text.splitlines()) == 1
    json.loads(text)


def test_what_json_cannot_hold_is_saved_all_the_same(tmp_path):
    group = group_of([1.0])
    group.traces[0].info = {"nan": float("nan"), "when": Path("x")}
    group.traces[0].nodes[1].message = {"role": "assistant", "content": "half a pair: \ud83d"}
    save_groups(tmp_path, 0, [SavedGroup(group, Decision("passed"))])
    (record,) = read_rollouts(step_directory(tmp_path, 0))
    assert record["info"]["nan"] == "NaN"
    assert record["nodes"][1]["message"]["content"] == "half a pair: \ud83d"
