"""The prompt that asks for a check."""

from replay_forests import answered, call, hand_made, node, record_of, unchanged

from reroll.api import Anchor
from reroll.replay import check
from reroll_replay_recheck.derivation import Recheck, RecheckConfig

CHECK = {"role": "user", "content": "Check your work and answer again."}


def rechecked(nodes, derivation=None):
    derivation, record = derivation or Recheck(), record_of(nodes)
    assert derivation.anchors(record, 0) == [Anchor()]
    prompt = unchanged(record, lambda record: derivation.prompt(record, Anchor()))
    assert check(prompt) is None
    return prompt


def test_a_finished_rollout_is_followed_by_the_instruction():
    question, answer = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    assert rechecked(answered()) == [question, answer, CHECK]
    again = Recheck(RecheckConfig(instruction="Sure?"))
    assert rechecked(answered(), again) == [question, answer, {"role": "user", "content": "Sure?"}]


def test_the_final_branch_is_the_main_conversations_last():
    assert [message["content"] for message in rechecked(hand_made())[:-1]] == ["be brief", "summary", "answer"]


def test_half_answered_parallel_calls_at_the_final_leaf_leave_no_call_dangling():
    nodes = [node(None, "user", "q"), node(0, "assistant", calls=["a", "b"]), node(1, "tool", "A", answers="a")]
    prompt = rechecked(nodes)
    assert prompt[1]["tool_calls"] == [call("a")]
    assert [message["role"] for message in prompt] == ["user", "assistant", "tool", "user"]


def test_the_last_turns_text_stays_without_its_open_calls_and_an_empty_turn_goes():
    said = [node(None, "user", "q"), node(0, "assistant", "I think", calls="a")]
    assert rechecked(said)[1] == {"role": "assistant", "content": "I think"}
    empty = [node(None, "user", "q"), node(0, "assistant", "", calls="a")]
    assert rechecked(empty) == [{"role": "user", "content": "q"}, CHECK]


def test_an_answer_that_was_cut_before_its_first_word_is_dropped():
    assert rechecked(answered(answer="")) == [{"role": "user", "content": "2 + 2?"}, CHECK]
