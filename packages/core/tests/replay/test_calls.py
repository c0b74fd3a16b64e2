"""Tool calls and their results: which belong together, and what a prompt may hold."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_forests import CALLS, IDENTITIES, call, fault_in, node

from reroll.replay import check, dangling, is_blank, normalised, orphans, tool_calls, without_dangling


def said(content="", *calls):
    return node(None, "assistant", content, calls=calls)["message"]


def result(identity=None, content="1"):
    return node(None, "tool", content, answers=identity)["message"]


ASKED = {"role": "user", "content": "q"}


def test_nested_and_flat_calls_and_arguments_as_json_are_one_form():
    nested = said("", call("x", arguments={"a": 2}))
    flat = said("", {"id": "x", "name": "add", "arguments": '{"a": 2}'})
    dumped = said("", {"id": "x", "function": None, "name": "add", "arguments": {"a": 2}})
    assert tool_calls(nested) == tool_calls(flat) == tool_calls(dumped) == [call("x", arguments={"a": 2})]


def test_arguments_that_are_no_mapping_stay_and_missing_ones_are_empty():
    flat = [{"name": "f", "arguments": text} for text in ("{", "[1]", None)]
    assert [item["function"]["arguments"] for item in tool_calls(said("", *flat))] == ["{", "[1]", {}]
    assert all("id" not in item for item in tool_calls(said("", *flat)))


@pytest.mark.parametrize("given", [None, "x", 3, [3], [{}], [{"function": "f"}], [{"name": ""}], {"name": "f"}])
def test_what_has_no_name_is_no_call(given):
    assert tool_calls({"role": "assistant", "tool_calls": given}) == []


def test_only_an_assistant_calls():
    assert tool_calls({"role": "user", "tool_calls": [call("x")]}) == []


def test_a_normalised_message_has_no_null_and_a_content():
    message = {"role": "assistant", "content": None, "tool_calls": None, "name": None}
    assert normalised(message) == {"role": "assistant", "content": ""}


def test_calls_are_answered_by_id_in_any_order():
    messages = [ASKED, said("", "a", "b"), result("b"), result("a")]
    assert (dangling(messages), orphans(messages)) == ([], [])
    assert dangling(messages[:3]) == [(1, 0)]
    assert dangling([messages[1], result("a")]) == [(0, 1)]


def test_calls_and_results_without_ids_are_matched_in_order():
    nameless = said("", call(None), call(None))
    assert dangling([nameless, result()]) == [(0, 1)]
    assert dangling([nameless, result("z"), result()]) == []
    assert dangling([said("", "a", "b"), result()]) == [(0, 1)]
    assert dangling([said("", "a", call(None)), result()]) == [(0, 0)]


def test_an_id_that_a_later_turn_uses_again_is_answered_there():
    messages = [said("", "a"), said("", "a"), result("a")]
    assert dangling(messages) == [(0, 0)]


def test_a_result_belongs_to_the_calls_right_before_it():
    messages = [said("", "a"), ASKED, result("a")]
    assert (dangling(messages), orphans(messages)) == ([(0, 0)], [2])


def test_a_result_without_call_or_given_twice_is_an_orphan():
    assert orphans([ASKED, result("a")]) == [1]
    assert orphans([said("", "a"), result("a"), result("a")]) == [2]
    assert orphans([said("", "a"), result("b")]) == [1]


def test_half_answered_parallel_calls_keep_the_answered_half():
    messages = [ASKED, said("", "a", "b"), result("a")]
    assert without_dangling(messages) == [ASKED, said("", "a"), result("a")]


def test_an_assistant_message_that_then_says_nothing_is_dropped_and_one_with_text_stays():
    assert without_dangling([ASKED, said("", "a")]) == [ASKED]
    assert without_dangling([ASKED, said(" \n", "a")]) == [ASKED]
    assert without_dangling([ASKED, said("so", "a")]) == [ASKED, said("so")]
    assert without_dangling([ASKED, said("")]) == [ASKED], "an answer that was cut before its first word"


def test_parts_without_text_are_blank_and_pictures_are_not():
    assert is_blank([{"type": "text", "text": " "}, {"type": "text", "text": None}]) and is_blank(None)
    assert not is_blank([{"type": "image_url", "image_url": {}}])


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "no messages"),
        (["q"], "message 0 is no message"),
        ([{"content": "q"}], "message 0 is no message"),
        ([ASKED, said("", "a")], "message 1 calls 'add', and no result"),
        ([ASKED, result("a")], "message 1 is the result of no call"),
        ([ASKED, said("a")], "last message is the assistant's"),
    ],
)
def test_a_prompt_that_may_not_be_used_is_told_why(messages, why):
    assert why in check(messages)


def test_a_prompt_that_may_be_used_passes():
    assert check([ASKED]) is None
    assert check([ASKED, said("", "a"), result("a")]) is None


MESSAGES = st.lists(
    st.one_of(
        st.just(ASKED),
        st.builds(lambda text, calls: said(text, *calls), st.sampled_from(["", "x"]), st.lists(CALLS, max_size=3)),
        st.builds(result, IDENTITIES),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_without_dangling_leaves_no_half_and_changes_nothing_given(messages):
    before = copy.deepcopy(messages)
    cleaned = without_dangling(messages)
    assert messages == before
    assert fault_in(cleaned) is None
    assert (dangling(cleaned), orphans(cleaned)) == ([], [])
    assert without_dangling(cleaned) == cleaned


@given(MESSAGES)
def test_a_conversation_without_halves_is_left_as_it_is(messages):
    if not dangling(messages) and not orphans(messages):
        silent = [m for m in messages if m["role"] == "assistant" and not m["content"] and not tool_calls(m)]
        assert without_dangling(messages) == [normalised(m) for m in messages if m not in silent]
