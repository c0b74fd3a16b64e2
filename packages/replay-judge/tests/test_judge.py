"""The transcript that is judged, and how a verdict is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_forests import answered, forests, hand_made, node, record_of, unchanged, write_step

from reroll.api import Anchor, Node, Task, Trace
from reroll.replay import conversation
from reroll.replay.buffer import ReplayBuffer
from reroll_replay_judge.derivation import JudgeConfig, JudgeTranscript, verdict
from reroll_replay_judge.transcript import transcript


def judged(nodes, **options):
    (message,) = unchanged(
        record_of(nodes), lambda record: JudgeTranscript(JudgeConfig(**options)).prompt(record, Anchor())
    )
    assert message["role"] == "user"
    return message["content"]


def test_a_question_and_its_answer_are_asked_about_in_these_words():
    assert judged(answered("ANSWER", "QUESTION")) == (
        "QUESTION\n\nAnswer: ANSWER\n\nWas this correct? Answer yes or no."
    )
    assert judged(answered("A", "Q"), instruction="Right?") == "Q\n\nAnswer: A\n\nRight?"


def test_everything_that_was_said_on_the_final_branch_is_shown():
    nodes = [*hand_made()[:7], hand_made()[11], node(7, "assistant", "end")]
    nodes[7]["parent"] = 6
    assert judged(nodes).split("\n\n") == [
        "System: be brief", "question", 'Call: add({"a": 1})\nCall: add({"a": 1})', "Result: A", "Result: B",
        'Answer: let me see\nCall: add({"a": 1})', "Result: C", "Answer: end", "Was this correct? Answer yes or no.",
    ]  # fmt: skip


def test_an_empty_answer_a_second_question_and_parts_are_shown():
    parts = [{"type": "text", "text": "see"}, {"type": "image_url"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": ""}]
    assert transcript([*messages, {"role": "user", "content": "well?"}], 4000) == (
        "see\n[image_url]\n\nAnswer:\n\nUser: well?"
    )


def test_a_long_message_loses_its_middle_and_short_ones_stay_whole():
    shown = judged(answered("b" + "x" * 10_000 + "e", "QUESTION"))
    assert shown.startswith("QUESTION\n\nAnswer: bxxx") and "x … x" in shown
    assert shown.endswith("xxxe\n\nWas this correct? Answer yes or no.")
    assert len(shown) == 4000 + len("\n\nWas this correct? Answer yes or no.")


def test_a_message_keeps_a_twentieth_of_the_budget_and_the_middle_of_the_conversation_goes():
    texts = [str(index) * 500 for index in range(10, 60)]
    shown = transcript([{"role": "user", "content": text} for text in texts], 1000).split("\n\n")
    (place,) = [index for index, text in enumerate(shown) if "messages are left out" in text]
    kept = shown[:place] + shown[place + 1 :]
    assert shown[0].startswith("1010") and shown[-1].startswith("User: 5959")
    assert all(len(text) >= 50 for text in kept)
    assert f"{50 - len(kept)} messages" in shown[place]


@given(forests(most=30), st.integers(1, 400), st.integers(200, 2000))
def test_a_transcript_is_never_longer_than_asked_and_begins_and_ends_as_the_conversation(nodes, length, budget):
    for item in nodes:
        item["message"]["content"] = (item["message"]["content"] or "") * length
    messages = conversation({"nodes": nodes})
    whole, shown = transcript(messages, 10**9), transcript(messages, budget)
    assert len(shown) <= budget
    if len(whole) <= budget:
        assert shown == whole
    else:
        assert (shown[:3], shown[-3:]) == (whole[:3], whole[-3:])


def test_a_budget_that_shows_nothing_is_refused():
    with pytest.raises(ValueError, match="max_transcript_chars\n.*greater than or equal to 200"):
        JudgeConfig(max_transcript_chars=199)


def test_the_target_is_whether_the_reward_reached_the_threshold():
    for reward, threshold, target in [(1.0, 1.0, "yes"), (0.9, 1.0, "no"), (0.5, 0.5, "yes"), (-1.0, 0.0, "no")]:
        derivation = JudgeTranscript(JudgeConfig(success_threshold=threshold))
        record = record_of(answered(), reward=reward)
        assert derivation.target(record, Anchor()) == derivation.label(reward) == target


def test_a_rollout_that_was_not_scored_is_not_asked_about():
    assert JudgeTranscript().anchors(record_of(answered(), reward=None), 0) == []
    assert JudgeTranscript().anchors(record_of(answered()), 0) == [Anchor()]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("yes", "yes"),
        ("No.", "no"),
        ("It is wrong.\nNO", "no"),
        ("yes\nwait\nno", "no"),
        ("**Yes**, it is", "yes"),
        ("Answer yes or no.", None),
        ("yes\nAnswer yes or no.", "yes"),
        ("I do not know, nobody does", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_last_line_with_one_of_the_words_is_the_verdict(answer, said):
    assert verdict(answer) == said


@pytest.mark.parametrize(("answer", "score", "parsed"), [("yes", 1.0, 1.0), ("no", 0.0, 1.0), ("yes or no", 0.0, 0.0)])
def test_the_matching_verdict_is_rewarded(answer, score, parsed):
    task = Task("q", {"judge": "yes"}, "judge", 0, "0")
    trace = Trace("t", task, [Node(None, {"role": "assistant", "content": answer}, True, [], [])])
    found = JudgeTranscript().score(task, trace)
    assert (found.score, found.components, found.state) == (score, {"parsed": parsed}, "ok")


def test_a_target_that_is_no_verdict_cannot_be_judged():
    task = Task("q", {"judge": None}, "judge", 0, "0")
    assert JudgeTranscript().score(task, Trace("t", task)).state == "unknown"


def test_as_many_correct_rollouts_as_others_are_offered(tmp_path):
    rewards = [1.0, 1.0, None, 0.0, 1.0]
    write_step(tmp_path, 0, [record_of(answered(), str(index), reward=value) for index, value in enumerate(rewards)])
    found = ReplayBuffer(tmp_path, JudgeTranscript(), source_envs=None, online=False, seed=0, warn=print)
    assert [found.pick(index).reward for index in range(len(found))] == [0.0, 1.0]
