"""Runs in which the built-in model calls a tool, and replays of what it did."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from driving import session_of
from killing import run_to_end

from reroll.loop import train
from reroll.models.files import resolve_model
from reroll.replay import check
from reroll.tasks.render import Renderer
from reroll.traces.samples import branch_tokens, unweighted_samples
from reroll.traces.saved import read_groups

ROOT = Path(__file__).parents[1]
RUN = {
    "model": {"path": "builtin:tiny-tools"},
    "data": {
        "task_set": {"name": "calculations", "terms": 4, "verifier": "regex"},
        "verifiers": [{"name": "regex", "pattern": r"\\boxed\{(-?\d+)\}"}],
    },
    "rollout": {
        "num_rollout": 2,
        "rollout_batch_size": 6,
        "n_samples_per_prompt": 4,
        "rollout_max_prompt_len": 96,
        "rollout_max_response_len": 64,
        "rollout_max_context_len": 320,
        "harness": {"name": "tool_loop", "compact_at": 64},
        "group_filters": [],
    },
    "trainer": {"lr": 1e-4, "max_sequence_length": 480},
}


def run(path, output, *overrides):
    async def body():
        async with session_of(path, output, *overrides) as session:
            await train(session)

    asyncio.run(asyncio.wait_for(body(), 240))
    return records(output)


def records(output):
    files = sorted((output / "rollouts").glob("step_*/train_rollouts.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a run with tool calls and compactions."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "run.toml").write_text(tomli_w.dumps(RUN))
    run(folder / "run.toml", folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def renderer():
    return Renderer(resolve_model("builtin:tiny-tools"))


def test_the_model_calls_the_tool_and_the_tool_answers(source):
    calls = 0
    for record in records(source):
        open_calls = {}
        for node in record["nodes"]:
            message = node["message"]
            for call in message.get("tool_calls") or ():
                open_calls[call["id"]] = call["function"]["arguments"]["expression"]
            if message["role"] == "tool":
                expression = open_calls.pop(message["tool_call_id"])
                assert message["content"] == str(eval(expression, {"__builtins__": {}}))
                calls += 1
    assert calls > len(records(source))
    assert sum(record["metrics"]["tools/calls"] for record in records(source)) >= calls


def test_parallel_calls_are_answered_in_their_order(source):
    parallel = [
        node
        for record in records(source)
        for node in record["nodes"]
        if len(node["message"].get("tool_calls") or ()) > 1
    ]
    assert parallel


def test_every_branch_is_what_the_model_saw_and_said(source, renderer):
    """The tokens from a root to a leaf say the rendered conversation; those that the model sampled are as sampled."""
    for group in read_groups(source / "rollouts" / "step_1"):
        for trace in group.group.traces:
            for leaf in trace.leaves():
                token_ids, mask, _ = branch_tokens(trace, leaf)
                nodes = trace.branch(leaf)
                assert mask == [node.sampled for node in nodes for _ in node.token_ids]
                text = renderer.tokenizer.decode(token_ids, skip_special_tokens=False)
                for node in nodes:
                    if node.message["role"] == "tool":
                        assert f"<|im_start|>tool\n{node.message['content']}<|im_end|>" in text


def test_every_sampled_token_carries_loss_once_over_all_branches(source):
    groups = [item.group for item in read_groups(source / "rollouts" / "step_1")]
    slots = [index * 4 for index in range(len(groups))]
    samples = unweighted_samples(groups, slots)
    sampled = sum(trace.response_tokens for group in groups for trace in group.traces if not trace.errors)
    assert sum(sum(sample.loss_mask) for sample in samples) == sampled
    assert len(samples) > sum(len(group.traces) for group in groups)


def test_compactions_begin_again_from_the_models_own_summary(source):
    compacted = [record for record in records(source) if record["metrics"]["tools/compactions"]]
    assert compacted
    for record in compacted:
        roots = [node for node in record["nodes"] if node["parent"] is None]
        assert [node["origin"] for node in roots] == [None, *["compaction"] * (len(roots) - 1)]
        assert all("Work so far: " in node["message"]["content"] for node in roots[1:])


ANCHORS = {
    "final": {"name": "recheck"},
    "compaction": {"name": "continue", "anchor": "compaction"},
    "tool-call": {"name": "continue", "anchor": "tool-call"},
    "transcript": {"name": "judge"},
}


@pytest.mark.parametrize("kind", ANCHORS)
def test_every_kind_of_anchor_is_replayed_from_a_real_run(source, tmp_path, kind):
    replayed = {
        "name": "replayed",
        "max_prompt_len": 300,
        "task_set": {**ANCHORS[kind], "buffer_dir": str(source)},
    }
    data = {"sources": [replayed], "verifiers": ["exact_match"]}
    rollout = {**RUN["rollout"], "num_rollout": 1, "harness": "single_turn"}
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps({**RUN, "data": data, "rollout": rollout}))
    found = run(path, tmp_path / "out")
    by_id = {record["id"]: record for record in records(source)}
    assert len(found) == 24
    for record in found:
        task = record["task"]
        assert check(task["prompt"]) is None
        origin = by_id[task["source_id"]]
        assert task["source_task"]["prompt"] == origin["task"]["prompt"]
        assert record["metrics"]["replay/source_reward"] == origin["info"]["reroll"]["reward"]
        assert set(record["rewards"]) == ({"judge"} if kind == "transcript" else {"regex"})
    if kind == "tool-call":
        assert all(record["task"]["prompt"][-1]["role"] == "tool" for record in found)
    if kind == "compaction":
        assert all("Work so far: " in record["task"]["prompt"][-1]["content"] for record in found)
    if kind in ("compaction", "tool-call", "final"):
        # The source's harness and tools, although this run's own harness takes single turns.
        assert all("tools/turns" in record["metrics"] and record["task"]["tools"] for record in found)


def test_a_model_that_cannot_call_tools_is_told_before_the_run(source, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps({**RUN, "model": {"path": "builtin:tiny-math"}}))
    done = subprocess.run(
        [sys.executable, "-m", "reroll", "validate", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "data.task_set" in done.stderr and "chat template" in done.stderr


def config(name, output, *overrides):
    """Runs one of the shipped run files, and gives what it printed."""
    return run_to_end(ROOT / "configs" / name, output, *overrides)


@pytest.mark.slow
def test_the_shipped_run_files_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = config("tools.toml", tmp_path / "outputs" / "tools", "rollout.num_rollout=2")
    assert "held-out: accuracy" in said
    config("replay/offline_continue.toml", tmp_path / "continue", "rollout.num_rollout=3")
    names = {record["info"]["reroll"]["env_name"] for record in records(tmp_path / "continue")}
    assert names == {"fresh", "continue"}
    config("replay/online_recheck.toml", tmp_path / "recheck", "rollout.num_rollout=10")
    first = (tmp_path / "recheck" / "rollouts" / "step_0" / "train_rollouts.jsonl").read_text("utf-8")
    assert {json.loads(line)["info"]["reroll"]["env_name"] for line in first.splitlines()} == {"fresh"}
    found = [record for record in records(tmp_path / "recheck") if record["task"]["source_id"]]
    assert found and all(record["task"]["source_task"]["source_task"] is None for record in found)
    shutil.rmtree(tmp_path / "outputs")
