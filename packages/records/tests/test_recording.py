"""From a scored group to its row: every field and every state of the specification's tables."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Decision, Task, Verdict

sys.path.insert(0, str(Path(__file__).parent))

from records_cases import (
    CONTEXT,
    FILTERED,
    PASSED,
    make_group,
    make_trace,
    manifest_of,
    other_run,
    rows_of,
    run_folder,
    write,
)

from reroll_records.store.identity import digest, identify
from reroll_records.store.lines import parse
from reroll_records.store.rows import GROUP_FIELDS, RESPONSE_FIELDS, GroupRow, validity
from reroll_records.writing.recording import RowMaker

TASK = Task("what?", {"math": "4"}, "numbers", 0, "0")
MAKER = RowMaker("protocol", 7, 0.0, fresh=True, frozen=False)


def row(group, decision=PASSED, maker=MAKER):
    return GroupRow.from_json(maker.row(group.observation_id, group, decision))


def response(trace, reward=1.0, maker=MAKER):
    return row(make_group(0, (reward,), traces=[trace]), maker=maker).responses[0]


def test_a_group_row_has_every_field_of_the_table():
    group = make_group(4, (0.0, 1.0), attempt=2)
    written = json.loads(MAKER.line(group.observation_id, group, PASSED))
    identity = identify(group.task, group.rendered, "protocol")
    responses = written.pop("responses")
    assert written.pop("time") > 1e9
    assert written == {
        "kind": "group",
        "schema": 1,
        "observation_id": "observation-4",
        "task_key": identity.task_key,
        "task_key_basis": "rendered_prompt_and_targets",
        "input_key": identity.input_key,
        "query_sha256": identity.query_sha256,
        "prompt_token_sha256": identity.prompt_token_sha256,
        "prepared_sample_id": "4",
        "source_dataset": "numbers",
        "source_row": 4,
        "verifiers": ["math"],
        "group_index": 4,
        "rollout_id": 2,
        "group_size": 2,
        "group_attempt": 2,
        "filter_decision": "passed",
        "filter_reason": "",
        "responses_included": False,
    }
    assert responses[1] == {
        "index": 1,
        "reward": 1.0,
        "reward_components": [{"name": "math", "score": 1.0, "weight": 2.0}],
        "validity": {"valid": True, "components": {"math": "ok"}},
        "response_tokens": 3,
        "status": "completed",
        "truncated": False,
        "policy_versions": [0],
        "policy_scope": "start_checkpoint",
        "seed": 401,
    }


@pytest.mark.parametrize("decision", [PASSED, FILTERED, Decision("aborted", "1 of 2 responses were scored")])
def test_a_row_says_what_the_filter_decided_and_why(decision):
    found = row(make_group(), decision)
    assert (found.filter_decision, found.filter_reason) == (decision.outcome, decision.reason)


@pytest.mark.parametrize(
    ("states", "valid"),
    [
        ({"a": "ok"}, True),
        ({"a": "ok", "b": "completed"}, True),
        ({"a": "ok", "b": "unknown"}, None),
        ({"a": "timeout"}, False),
        ({"a": "rejected"}, False),
        ({"a": "service_error"}, False),
        ({"a": "judge_error"}, False),
        ({"a": "timeout", "b": "unknown"}, False),
        ({}, None),
    ],
)
def test_validity_is_true_only_if_every_component_is_false_if_any_failed_null_if_any_is_unknown(states, valid):
    assert validity(states).valid is valid


@pytest.mark.parametrize("state", ["ok", "completed", "timeout", "rejected", "service_error", "judge_error", "unknown"])
def test_every_expected_verifier_gets_its_state(state):
    score = 0.5 if state in ("ok", "completed", "rejected") else None
    found = response(make_trace(TASK, Verdict(score, state=state)))
    assert found.validity.components == {"math": state}


def test_without_a_status_a_component_is_unknown():
    assert response(make_trace(TASK), None).validity.components == {"math": "unknown"}
    lost = response(make_trace(TASK, Verdict(None, state="ok")), None)
    assert lost.validity.components == {"math": "unknown"}, "there is no score that the verifier could vouch for"


def test_a_failure_policy_may_have_assigned_a_reward():
    found = response(make_trace(TASK, Verdict(None, state="timeout")), 0.0)
    assert (found.reward, found.validity.valid) == (0.0, False)
    assert found.reward_components[0].score is None


@pytest.mark.parametrize(
    ("versions", "fresh", "frozen", "scope"),
    [
        ((0,), True, False, "start_checkpoint"),
        ((1,), True, False, "run_version"),
        ((0,), False, False, "run_version"),
        ((0, 1), True, False, "mixed"),
        ((3, 4), False, False, "mixed"),
        ((0,), True, True, "start_checkpoint"),
        ((), True, False, None),
    ],
)
def test_policy_scopes(versions, fresh, frozen, scope):
    """`start_checkpoint`: entirely by version 0 of a fresh run; `run_version`: by one later version; `mixed`: across
    versions. Where nothing was sampled there is no policy to speak of."""
    maker = replace(MAKER, fresh=fresh, frozen=frozen)
    found = response(make_trace(TASK, Verdict(1.0), versions=versions), maker=maker)
    assert found.policy_scope == scope
    assert found.policy_versions == list(versions)


def test_a_generation_run_is_all_start_checkpoint(tmp_path):
    context = replace(CONTEXT, source="generate", fresh=True)
    folder = write(tmp_path, [make_group(number) for number in range(3)], context)
    assert manifest_of(folder)["source"] == "generate"
    scopes = {item["policy_scope"] for found in rows_of(folder) for item in found["responses"]}
    assert scopes == {"start_checkpoint"}


@pytest.mark.parametrize(
    ("stop", "status", "truncated"),
    [
        ("stop", "completed", False),
        ("length", "truncated", True),
        ("abort", "aborted", False),
        ("error", "failed", False),
    ],
)
def test_a_response_says_how_it_ended(stop, status, truncated):
    found = response(make_trace(TASK, Verdict(1.0), stop=stop))
    assert (found.status, found.truncated) == (status, truncated)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e19])
def test_what_json_has_no_number_for_is_no_reward(reward):
    group = make_group(0, (reward, 1.0), traces=[make_trace(TASK, Verdict(reward)), make_trace(TASK, Verdict(1.0))])
    found = GroupRow.from_json(parse(MAKER.line(group.observation_id, group, PASSED)))
    assert found.responses[0].reward is None and found.responses[0].validity.valid is None


@given(st.text(st.characters()), st.floats(-1e18, 1e18) | st.none(), st.integers(0, 2**63 - 1))
def test_what_is_written_is_read_back(text, reward, seed):
    group = make_group(0, (reward,), traces=[make_trace(TASK, Verdict(reward), text=text)])
    group.seeds = [seed]
    maker = replace(MAKER, sample_rate=1.0)
    made, line = row(group, maker=maker), maker.line(group.observation_id, group, PASSED)
    assert b"\n" not in line
    assert list(json.loads(line)) == ["kind", "schema", *GROUP_FIELDS, "prompt"]
    assert list(json.loads(line)["responses"][0]) == list(RESPONSE_FIELDS)
    read = GroupRow.from_json(parse(line))
    same = text.encode("utf-8", "replace").decode()
    assert read == replace(made, responses=[replace(made.responses[0], response=same)], time=read.time)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e300])
def test_a_weight_that_no_row_can_hold_is_no_other_weight(weight):
    group = make_group(0)
    group.verifier_weights = {"math": weight}
    with pytest.raises(ValueError, match="a weight without bounds"):
        MAKER.line(group.observation_id, group, PASSED)


def test_responses_off_keeps_outcomes_alone(tmp_path):
    (found,) = rows_of(write(tmp_path, [make_group()]))
    assert found["responses_included"] is False and "prompt" not in found
    assert all("response" not in item for item in found["responses"])


def test_responses_all_keeps_every_text(tmp_path):
    (found,) = rows_of(write(tmp_path, [make_group()], responses="all"))
    assert found["responses_included"] is True and found["prompt"] == "<what?>"
    assert [item["response"] for item in found["responses"]] == ["an answer é 🙂"] * 2


def test_responses_sample_keeps_whole_groups_and_the_same_ones_every_time(tmp_path):
    groups = [make_group(number, (0.0, 1.0, 0.0), prompt=f"what is {number}?") for number in range(400)]
    settings = {"responses": "sample", "response_sample_rate": 0.25}
    kept = []
    for name in ("one", "two"):
        context = other_run(name)
        found = rows_of(write(tmp_path, groups, context, **settings), context.attempt)
        texts = [{("response" in item) for item in each["responses"]} for each in found]
        assert all(len(each) == 1 for each in texts), "a group is kept whole"
        assert [each == {True} for each in texts] == [each["responses_included"] for each in found]
        kept.append([each["source_row"] for each in found if each["responses_included"]])
    assert kept[0] == kept[1]
    assert 60 <= len(kept[0]) <= 140
    other = other_run("three", seeds=replace(CONTEXT.seeds, rollout=8))
    found = rows_of(write(tmp_path, groups, other, **settings), other.attempt)
    assert [each["source_row"] for each in found if each["responses_included"]] != kept[0]


def test_the_manifest_has_everything_of_the_specification(tmp_path):
    context = replace(
        CONTEXT, filters={"selection": "e" * 64}, loaded=Path("/a/checkpoint"), start_rollout_id=3, fresh=False
    )
    folder = write(tmp_path, [make_group()], context, responses="sample", response_sample_rate=0.5)
    found = manifest_of(folder)
    assert found["source"] == "train"
    assert found["run"] == {
        "name": "name",
        "id": "run",
        "attempt": "first",
        "start_rollout_id": 3,
        "start_version": 0,
        "loaded_checkpoint": "/a/checkpoint",
        "fresh": False,
    }
    assert found["lineage"]["weights_hashed"] is False
    assert folder.parent.name == found["lineage"]["id"] and len(found["lineage"]["id"]) == 16
    assert found["protocol_digest"] == digest(found["protocol"]), "a reader can check it"
    assert found["rollout_seed"] == 7 and found["data"] == {"name": "numbers"}
    assert found["writer"] == {"responses": "sample", "response_sample_rate": 0.5, "queue_rows": 4096}
    assert found["selection_sha256"] == "e" * 64
    assert manifest_of(write(tmp_path / "b", [make_group()]))["selection_sha256"] is None


def test_a_resumed_run_writes_beside_its_earlier_attempts(tmp_path):
    write(tmp_path, [make_group(0)])
    write(tmp_path, [make_group(1)], replace(CONTEXT, attempt="second", fresh=False))
    names = sorted(path.name for path in run_folder(tmp_path).iterdir())
    assert [name for name in names if name.startswith(("manifest", "records"))] == [
        "manifest-first.json",
        "manifest-second.json",
        "records-first.jsonl",
        "records-second.jsonl",
    ]
    assert len(rows_of(run_folder(tmp_path))) == 1


def test_runs_of_one_starting_checkpoint_share_a_lineage(tmp_path):
    write(tmp_path, [make_group()], other_run("one"))
    write(tmp_path, [make_group()], other_run("two"))
    write(tmp_path, [make_group()], other_run("three", checkpoint={"config.json": {"size": 3, "mtime": 1.5}}))
    assert len(list(tmp_path.iterdir())) == 2
    assert len(list(tmp_path.glob("*/*"))) == 3


def test_a_row_of_outcomes_alone_is_about_as_small_as_the_specification_says(tmp_path):
    """1.5 KB; ours has a seed for every response besides."""
    folder = write(tmp_path, [make_group(number, (0.0, 1.0) * 4) for number in range(10)])
    assert (folder / "records-first.jsonl").stat().st_size / 10 < 3000
