"""What the verifier says."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll import Node, Task, Trace, Verdict
from reroll_verifiers_if.registry import instructions
from reroll_verifiers_if.verifier import InstructionsConfig, InstructionsVerifier, last_user_text

NO_COMMA = {"id": "punctuation:no_comma"}
TWO_BULLETS = {"id": "detectable_format:number_bullet_lists", "num_bullets": 2}
ALL = [
    {"id": item.id, **{name: parameter.example for name, parameter in item.parameters.items()}}
    for item in instructions().values()
    if item.id != "change_case:english_lowercase" and item.id != "language:response_language"
]
REST = [{"id": "change_case:english_lowercase"}, {"id": "language:response_language", "language": "en"}]


def judge(target, answer, prompt="", **options):
    task = Task(prompt, {"instructions": target}, "test", 0, "0")
    node = Node(None, {"role": "assistant", "content": answer}, True, [1], [True])
    return InstructionsVerifier(InstructionsConfig(**options)).score(task, Trace("t", task, [node]))


@pytest.fixture(scope="module", autouse=True)
def warm():
    InstructionsVerifier().warm_up()


def test_all_instructions_are_followed():
    verdict = judge([NO_COMMA, TWO_BULLETS], "* one\n* two")
    components = {
        "punctuation:no_comma": 1,
        "detectable_format:number_bullet_lists": 1,
        "strict": 1,
        "loose": 1,
        "parsed": 1,
    }
    assert verdict == Verdict(1.0, components)


def test_one_instruction_is_missed():
    verdict = judge([NO_COMMA, TWO_BULLETS, TWO_BULLETS], "* one\n* two, three")
    assert verdict.score == 0 and verdict.state == "ok" and verdict.detail == "not followed: punctuation:no_comma"
    assert verdict.components["punctuation:no_comma"] == 0
    assert verdict.components["detectable_format:number_bullet_lists#2"] == 1
    assert judge([NO_COMMA, TWO_BULLETS, TWO_BULLETS], "* one\n* two, three", aggregate="mean").score == pytest.approx(
        2 / 3
    )


def test_loose_lets_a_first_line_pass():
    answer = "Sure, here it is:\n* one\n* two"
    strict, loose = judge([NO_COMMA, TWO_BULLETS], answer), judge([NO_COMMA, TWO_BULLETS], answer, mode="loose")
    assert (strict.score, loose.score) == (0, 1)
    for verdict in (strict, loose):
        assert (verdict.components["strict"], verdict.components["loose"]) == (0, 1)
    assert (strict.components["punctuation:no_comma"], loose.components["punctuation:no_comma"]) == (0, 1)


def test_loose_judges_each_instruction_by_a_reading_of_its_own():
    # Without its first line the answer has no comma, and only with it two bullet points.
    verdict = judge([NO_COMMA, TWO_BULLETS], "* one, first\n* two", mode="loose")
    assert verdict.score == 1 and verdict.components["strict"] == 0


def test_loose_lets_asterisks_pass():
    title = [{"id": "startend:quotation"}]
    assert judge(title, '**"All of it."**').score == 0
    assert judge(title, '**"All of it."**', mode="loose").score == 1


@pytest.mark.parametrize("answer", ["", " \n ", "\u200b\ufeff", "\u2800", "<think>never closed", "<think>so</think>\n"])
def test_an_empty_answer_follows_nothing(answer):
    less = {"id": "length_constraints:number_words", "num_words": 9, "relation": "less than"}
    verdict = judge([NO_COMMA, less], answer, mode="loose", aggregate="mean")
    assert verdict.score == 0 and verdict.state == "ok"
    assert set(verdict.components.values()) == {0.0} and len(verdict.components) == 5


@pytest.mark.parametrize("answer", [".", "*", "-", "_", '""', "[](", ". ! ?"])
def test_marks_alone_follow_nothing(answer):
    verdict = judge(ALL, answer, mode="loose", aggregate="mean")
    followed = {name for name, value in verdict.components.items() if value} - {"parsed"}
    assert followed == ({"detectable_format:json_format"} if answer == '""' else set())


def test_an_instruction_that_comes_a_hundred_times_is_judged_once_for_each():
    verdict = judge([NO_COMMA] * 100, "One word")
    assert verdict.score == 1 and len(verdict.components) == 103


def test_what_is_thought_is_not_judged_unless_it_is_kept():
    answer = "<think>first, second</think>\n\nOne word"
    assert judge([NO_COMMA], answer).score == 1
    assert judge([NO_COMMA], answer, keep_thinking=True).score == 0


def test_a_target_that_cannot_be_judged_is_never_a_pass():
    verdict = judge([{"id": "no:such"}], "anything")
    assert verdict.score is None and verdict.state == "unknown" and "no:such" in verdict.detail
    assert judge([{"id": "combination:repeat_prompt"}], "anything").state == "unknown"


def test_an_answer_that_is_too_long_is_refused():
    verdict = judge([NO_COMMA], "a" * 11, max_answer_chars=10)
    assert verdict == Verdict(0.0, {"parsed": 1.0}, "rejected", "an answer of 11 characters, at most 10 are read")


def test_the_last_user_message_is_the_prompt():
    repeat = [{"id": "combination:repeat_prompt"}]
    messages = [
        {"role": "user", "content": "First."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "Say hello."}]},
        {"role": "assistant", "content": "Hm."},
    ]
    assert judge(repeat, "Say hello. Hello!", prompt=messages).score == 1
    assert judge(repeat, "First. Hello!", prompt=messages).score == 0
    assert last_user_text(Task([{"role": "system", "content": "So."}], {}, "test", 0, "0")) == ""


def test_options_are_checked():
    for wrong in ({"mode": "lose"}, {"aggregate": "any"}, {"max_answer_chars": 0}, {"other": 1}):
        with pytest.raises(ValidationError):
            InstructionsConfig(**wrong)


TEXTS = st.text(max_size=80) | st.text(alphabet="aA.!?\n\t *-\"'`[]{}()<>/,1zé日😀:#P", max_size=80)


@settings(max_examples=40)
@given(TEXTS)
def test_any_text_gives_a_verdict_by_every_instruction(text):
    for target in (ALL, REST):
        verdict = judge(target, text, aggregate="mean")
        assert verdict.state == "ok" and 0 <= verdict.score <= 1 and len(verdict.components) == len(target) + 3
        assert verdict.components["strict"] <= verdict.components["loose"]


LENGTH = 150_000
RUNS = ["a", ".", "<", "[", "(", '"', "*", "\n", " ", "。", "1", "😀", "é", "\x00", "-"]


@pytest.mark.parametrize(
    "run", [*RUNS, "Question 1. a) b\n", "* a\n- b\n", '"a",', "<i>", "word\n", "a@", "\ud800", "a. "], ids=ascii
)
def test_a_long_text_gives_a_verdict_by_every_instruction(run):
    # A pattern that looks back over what it has passed would need minutes for a run of this length.
    text = "x" + run * (LENGTH if len(run) == 1 else LENGTH // 100) + "x"
    for target in (ALL, REST):
        assert judge(target, text).state == "ok"


PROGRAM = """
import json, sys
from reroll import Node, Task, Trace
from reroll_verifiers_if.verifier import InstructionsVerifier
verifier = InstructionsVerifier()
verdicts = []
for target, text in json.load(sys.stdin):
    task = Task("", {"instructions": target}, "test", 0, "0")
    node = Node(None, {"role": "assistant", "content": text}, True, [1], [True])
    verdict = verifier.score(task, Trace("t", task, [node]))
    verdicts.append([verdict.score, dict(verdict.components), verdict.detail])
print(json.dumps(verdicts))
"""


def test_a_verdict_is_the_same_in_every_process():
    mixed = "La casa es grande. Das Haus ist groß. 😀 The house, it is. ok da si no"
    texts = [
        mixed,
        mixed.lower(),
        "si",
        'Write a level radar?! (so) "it" is...',
        "* a\n - b\n* c\n - d",
        "ok da",
        "hola amigo",
    ]
    languages = [[{"id": "language:response_language", "language": code}] for code in ("en", "es", "it", "pt", "de")]
    cases = json.dumps([[target, text] for text in texts for target in (ALL, REST, *languages)])
    printed = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=cases, env=environment, capture_output=True, text=True, check=True
        )
        printed.add(run.stdout)
    assert len(printed) == 1 and len(json.loads(printed.pop())) == len(texts) * 7
