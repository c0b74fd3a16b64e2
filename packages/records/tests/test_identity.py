"""What prompts, protocols and starting checkpoints are known by."""

import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import RenderedPrompt, Task

sys.path.insert(0, str(Path(__file__).parent))

from records_cases import CONTEXT, PROTOCOL

from reroll_records.store.identity import canonical, differences, digest, domain, identify, lineage, protocol_record

RENDERED = RenderedPrompt("system: be brief\nuser: what?", (1, 2, 3), "", "")
TASK = Task([{"role": "user", "content": "what?"}], {"math": "4"}, "set", 0, "0")


def key(task=TASK, rendered=RENDERED, protocol="p"):
    return identify(task, rendered, protocol)


def test_a_task_key_is_of_the_whole_rendered_input_and_the_targets():
    assert key().task_key == digest([RENDERED.text, {"math": "4"}])
    assert key(rendered=replace(RENDERED, text="system: be long\nuser: what?")).task_key != key().task_key
    assert key(task=replace(TASK, targets={"math": "5"})).task_key != key().task_key
    assert key(task=replace(TASK, source_row=7, prepared_sample_id="7")).task_key == key().task_key


def test_an_input_key_is_of_task_key_prompt_tokens_and_protocol():
    assert key().input_key != key(protocol="q").input_key
    assert key().input_key != key(rendered=replace(RENDERED, token_ids=(1, 2, 4))).input_key
    assert key().input_key != key(task=replace(TASK, targets={})).input_key
    assert key() == key(task=replace(TASK, source_dataset="elsewhere"))


def test_a_query_hash_is_of_the_final_user_message_only():
    talk = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "what? é"},
    ]
    assert key(task=replace(TASK, prompt=talk)).query_sha256 == sha256("what? é".encode()).hexdigest()
    assert key(task=replace(TASK, prompt="what? é")).query_sha256 == sha256("what? é".encode()).hexdigest()
    parts = [{"role": "user", "content": [{"type": "text", "text": "what?"}]}]
    assert len(key(task=replace(TASK, prompt=parts)).query_sha256) == 64
    assert key(task=replace(TASK, prompt=talk)).task_key == key().task_key, "it is no part of the identity"


def test_targets_without_a_form_in_json_have_no_identity_that_others_would_find():
    for target in (object(), {1, 2}, b"4"):
        with pytest.raises(ValueError, match=r"task set:0: .* has no form in JSON"):
            key(task=replace(TASK, targets={"math": target}))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_equal_values_have_equal_canonical_forms(value):
    shuffled = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert canonical(value) == canonical(shuffled)


@given(st.lists(st.integers(0, 2**40), max_size=8), st.lists(st.integers(0, 2**40), max_size=8))
def test_prompts_of_other_tokens_are_other_prompts(first, second):
    digests = [key(rendered=replace(RENDERED, token_ids=tuple(ids))).prompt_token_sha256 for ids in (first, second)]
    assert (digests[0] == digests[1]) == (first == second)


def test_a_lineage_is_the_first_16_digits_of_the_digest_of_the_file_inventory():
    found = lineage(CONTEXT)
    assert found["id"] == digest(CONTEXT.checkpoint)[:16] and found["sha256"] == digest(CONTEXT.checkpoint)
    assert found["weights_hashed"] is False and found["basis"] == "model_directory"
    touched = {**CONTEXT.checkpoint, "model.safetensors": {"size": 9, "mtime": 3}}
    assert lineage(replace(CONTEXT, checkpoint=touched))["id"] != found["id"]
    assert lineage(replace(CONTEXT, run_id="other", attempt="other"))["id"] == found["id"]
    with pytest.raises(ValueError, match="no files"):
        lineage(replace(CONTEXT, checkpoint={}))


def test_a_protocol_holds_what_responses_are_drawn_and_judged_by():
    record = protocol_record(PROTOCOL)
    assert record["zero_variance_filter"] is True
    assert protocol_record(replace(PROTOCOL, group_filters=[]))["zero_variance_filter"] is False
    assert record["verifier_registry_sha256"] == digest(PROTOCOL.verifiers)
    changed = [
        {"sampling": {"temperature": 0.7}},
        {"template_sha256": "d" * 64},
        {"tokenizer_sha256": "d" * 64},
        {"generation_config_sha256": "d" * 64},
        {"verifiers": {}},
        {"group_filters": []},
        {"deterministic_inference": False},
    ]
    digests = {digest(protocol_record(replace(PROTOCOL, **change))) for change in changed}
    assert len(digests | {digest(record)}) == len(changed) + 1


def test_differences_are_named_by_their_place():
    found = list(differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}))
    assert found == [
        "a.c: 2 there, 4 in this run",
        "d: 3 there, None in this run",
        "e: None there, 5 in this run",
    ]
    assert list(differences({"a": [1]}, {"a": [1]})) == []


def test_a_domain_is_the_verifiers_together():
    assert domain(["b", "a"]) == "a+b" and domain([]) == "none"
