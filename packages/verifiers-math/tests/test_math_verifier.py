"""What the verifier says."""

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll import Node, Task, Trace, Verdict
from reroll_verifiers_math.boxes import boxed as in_box
from reroll_verifiers_math.extraction import visible
from reroll_verifiers_math.literals import LITERAL_CHARS, literal_answer, literal_number
from reroll_verifiers_math.targets import read_gold
from reroll_verifiers_math.verifier import MathConfig, MathVerifier

RIGHT, WRONG = Verdict(1.0, {"parsed": 1.0}), Verdict(0.0, {"parsed": 1.0})


def boxed(text):
    return f"\\boxed{{{text}}}"


@pytest.mark.parametrize(("gold", "answer"), [(7, "7.0"), (0.25, r"\frac14"), (-3, "−3"), (r"\boxed{12}", "12")])
def test_targets_are_texts_or_numbers(judge, gold, answer):
    assert judge(gold, boxed(answer)) == RIGHT


def test_no_answer(judge):
    for completion in ("I do not know.", "", "<think> 1"):
        assert judge("1", completion) == Verdict(0.0, {"parsed": 0.0})


def test_only_boxes_by_option(judge):
    assert judge("4", "The answer is 4.") == RIGHT
    assert judge("4", "The answer is 4.", extraction="boxed") == Verdict(0.0, {"parsed": 0.0})
    assert judge("4", "4", extraction="boxed") == Verdict(0.0, {"parsed": 0.0})
    assert judge("4", r"\boxed{4}", extraction="boxed") == RIGHT
    assert judge("C", "The answer is C.", extraction="boxed") == Verdict(0.0, {"parsed": 0.0})
    assert judge("C", r"\boxed{C}", extraction="boxed") == RIGHT


def test_several_boxes_by_option(judge):
    for option, gold in (("join", "3, 5"), ("last", "5")):
        for other, expected in (
            ("join", RIGHT if option == "join" else WRONG),
            ("last", RIGHT if option == "last" else WRONG),
        ):
            assert judge(gold, r"\boxed{3}, \boxed{5}", several_boxes=other) == expected


def test_rounded_decimals_by_option(judge):
    assert judge("1/3", boxed("0.333333")) == RIGHT
    assert judge("1/3", boxed("0.333333"), rounded_decimals=8) == WRONG
    assert judge("1/3", boxed("0.33333333"), rounded_decimals=8) == RIGHT
    assert judge("1/3", boxed("0.333333333333"), rounded_decimals=0) == WRONG
    assert judge("1/3", boxed("0.33333")) == WRONG
    # Nothing that is small is lost in places.
    assert judge("0.0000001", boxed("0.0000002")) == WRONG
    assert judge(r"10^{-10}", boxed("0.000000")) == WRONG
    assert judge(r"1.5 \times 10^{-12}", boxed("1.5e-12")) == RIGHT
    assert judge(r"1.5 \times 10^{-12}", boxed("1.6e-12")) == WRONG


def test_tolerance_by_option(judge):
    assert judge("9.81", boxed("9.8")) == WRONG
    assert judge("9.81", boxed("9.8"), tolerance=0.01) == RIGHT
    assert judge("9.81", boxed("9.5"), tolerance=0.01) == WRONG
    assert judge(r"2\pi", boxed("6.28"), tolerance=0.01) == RIGHT
    with pytest.raises(ValidationError):
        MathConfig(tolerance=1.5)


def test_percents_by_option(judge):
    for answer in ("28%", "28", "0.28", "28 percent", r"28\%"):
        assert judge(r"28\%", boxed(answer)) == RIGHT
    assert judge(r"28\%", boxed("28"), percent="exact") == WRONG
    assert judge(r"28\%", boxed("0.28"), percent="exact") == RIGHT
    assert judge(r"28\%", boxed(r"0.28\%")) == WRONG


def test_units_by_option(judge):
    assert judge("5 cm", boxed("5")) == judge("5", boxed(r"5\text{ cm}")) == judge("5 cm", boxed("0.05 m")) == RIGHT
    assert judge("5 cm", boxed("5 m")) == judge("5 cm", boxed("5 kg")) == WRONG
    assert judge("5 cm", boxed("5"), units="required") == judge("5", boxed("5 cm"), units="required") == WRONG
    assert judge("5 cm", boxed(r"5\ \mathrm{cm}"), units="required") == RIGHT


def test_hostile_answers_are_rejected(judge):
    long = judge("1", boxed("1" + "+0" * 30), max_answer_chars=20)
    assert (long.score, long.state) == (0.0, "rejected") and "61 characters" in long.detail and "20" in long.detail
    assert judge("1", boxed("1"), max_answer_chars=20).state == "ok"
    assert judge("1", boxed("9" * 100_000)).state == "rejected"
    deep = judge("1", boxed(r"\sqrt{" * 60 + "1" + "}" * 60))
    assert (deep.score, deep.state) == (0.0, "rejected") and "deep" in deep.detail
    assert judge("1", boxed("/".join("1" * 500))).state == "rejected"
    for answer in ("9^{9^{9^9}}", r"\frac{5^{5^{5^{5^5}}} - 5}{16}", "=" * 500, r"\frac" * 500, r"(((99999!)!)!)!"):
        assert judge("1", boxed(answer)).state == "rejected", answer
    for completion in ("=" * 10**6, "{" * 500, r"\frac" * 500, "no answer " * 50_000):
        verdict = judge("1", completion)
        assert (verdict.score, verdict.state, verdict.components["parsed"]) == (0.0, "rejected", 0.0)
    assert judge("9^{9^{9^9}}", boxed("9^{9^{9^9}}")) == RIGHT
    code = judge("1", boxed("__import__('os').getpid()"))
    assert (code.score, code.state) == (0.0, "rejected") and "program" in code.detail
    with pytest.raises(ValidationError):
        MathConfig(max_answer_chars=0)


@pytest.mark.parametrize(
    "gold", ["", " ", "$$", r"\frac{", r"x = \foo{1}", "{1", r"\boxed{\frac{}{}}", None, True, ["1"]]
)
def test_a_target_that_cannot_be_read_is_unknown(judge, gold):
    verdict = judge(gold, boxed("1"))
    assert (verdict.score, verdict.state) == (None, "unknown") and verdict.detail
    # Also where the texts are the same: or only right answers would be scored.
    assert judge(gold, boxed(gold)).state == "unknown"
    assert MathVerifier().check_target(gold)


@pytest.mark.parametrize(
    "gold",
    [
        "42",
        r"\text{Evelyn}",
        "red",
        "A",
        "(C) 12",
        r"\frac{1}{2}",
        "x > 5",
        r"\int_0^1 x dx",
        r"\sum_{k=1}^n k",
        "a man",
    ],
)
def test_targets_that_can_be_read_are_found_good(gold):
    assert MathVerifier().check_target(gold) is None


def test_what_the_grammar_does_not_read_goes_to_sympy(judge):
    assert judge(r"\int_0^1 x\,dx", boxed(r"\frac{1}{2}")) == RIGHT
    assert judge(r"\int_0^1 x\,dx", boxed(r"\frac{1}{3}")) == WRONG


@given(st.text(max_size=80), st.sampled_from(["1", r"\frac{x}{2}", "(1,2)", "x=3", "A", "red", r"\{1,2\}", "x > 5"]))
@settings(deadline=None)
def test_arbitrary_answers_get_a_verdict(judge, text, gold):
    for completion in (text, boxed(text), f"${text}$", f"The answer is {text}"):
        verdict = judge(gold, completion)
        assert verdict.score in (0.0, 1.0) and verdict.state in ("ok", "rejected")
        assert verdict.components["parsed"] in (0.0, 1.0)


COMMANDS = [
    *(
        "\\frac",
        "\\sqrt",
        "\\left(",
        "\\right)",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "&",
        "\\cup",
        "\\in",
        "\\pm",
    ),
    *(
        "\\text{a}",
        "\\infty",
        "\\le",
        "<",
        "=",
        "\\sin",
        "\\log_2",
        "\\binom",
        "|",
        "\\{",
        "\\}",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
    ),
    *(
        "^",
        "_",
        "!",
        "'",
        "%",
        "°",
        "/",
        "*",
        "+",
        "-",
        ",",
        ":",
        ";",
        "1",
        "2.5",
        "0",
        "x",
        "n",
        "i",
        "e",
        "\\pi",
        "10",
        " ",
    ),
    *(
        "\\begin{cases}",
        "\\end{cases}",
        "\\overline",
        "cm",
        "and",
        "\\mathbb{R}",
        "\\boxed",
        "1/2",
        "1,234",
        "\\angle",
        "f",
    ),
]
LATEX = st.lists(st.sampled_from(COMMANDS), max_size=14).map("".join)


@given(LATEX, LATEX)
@settings(deadline=None, max_examples=300)
def test_arbitrary_latex_gets_a_verdict(judge, gold, answer):
    verdict = judge(gold, boxed(answer))
    assert verdict.state in ("ok", "unknown", "rejected") and verdict.scored == (verdict.state != "unknown")


@given(LATEX)
@settings(deadline=None, max_examples=150)
def test_an_answer_equals_itself(judge, text):
    found = judge(text, boxed(text))
    if found.state == "ok" and in_box(boxed(text)) == text == read_gold(text).text:
        assert found.score == 1.0


NUMBER = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.decimals(-1000, 1000, places=3).map(str),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda pair: f"\\frac{{{pair[0]}}}{{{pair[1]}}}"),
)


@pytest.mark.parametrize(
    "completion",
    [
        r"<reasoning> \boxed{5}",
        r"<thought> so \boxed{5}",
        r"<think>\boxed{5}</think> 4",
        "The answer is 4.\n\nProblem: next \\boxed{5}",
        r"<answer>4</answer> \boxed{5}",
    ],
)
def test_the_short_way_sees_no_more_than_the_long_way(judge, completion):
    assert judge("5", completion).score == 0.0
    assert judge("5", r"\boxed{123456789012345678}", max_answer_chars=5).state == "rejected"


@given(NUMBER, NUMBER, st.sampled_from(["%s", "$%s$", r"so \boxed{%s}.", r"$\boxed{%s}$", r"\boxed{%s}<|im_end|>"]))
@settings(deadline=None)
def test_the_short_way_says_what_the_long_way_says(judge, gold, answer, shape):
    completion = shape % answer
    assert literal_number(gold) is not None and literal_answer(visible(completion)) is not None
    assert judge(gold, completion) == judge(gold, completion, max_answer_chars=LITERAL_CHARS - 1)  # the long way
    assert judge(answer, completion) == RIGHT


def test_it_says_the_same_wherever_it_is_called(judge):
    answers = ["x+1", "x+2", r"\frac{2x+2}{2}", r"\sin^2 x+\cos^2 x + x", "1", r"\text{one}"] * 4
    expected = [judge("1+x", boxed(answer)) for answer in answers]
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.extend(judge("1+x", boxed(answer)) for answer in answers))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(4) as executor:
        in_executor = list(executor.map(lambda answer: judge("1+x", boxed(answer)), answers))
    assert expected == in_thread == in_executor
    assert [verdict.score for verdict in expected[:6]] == [1, 0, 1, 1, 0, 0]


def test_verdicts_are_the_same_in_every_process():
    code = (
        "from reroll_verifiers_math.judging import judge; from reroll_verifiers_math.quantities import Policy;"
        "pairs = [('x+y', 'y+x'), (r'\\sqrt{x^2}', '|x|'), (r'\\sqrt{x^2}', 'x'), ('abc', 'cab')];"
        "print([judge(*pair, Policy()) for pair in pairs])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(found) == 1 and "True" in found.pop()


def test_importing_the_plugin_is_light():
    code = (
        "import sys, json, reroll_verifiers_math.plugin as plugin; print(json.dumps([m for m in"
        " ('sympy', 'mpmath', 'math_verify', 'latex2sympy2_extended') if m in sys.modules]));"
        "assert [cls.name for cls in plugin.reroll_verifiers()] == ['math']"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []


def test_hostile_answers_in_the_scoring_pool_hold_nobody_up():
    from reroll.rollouts.scoring.config import ScoringConfig
    from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

    hostile = [
        r"\frac{5^{5^{5^{5^5}}} - 5}{16}",
        "9^" * 50 + "9",
        "(" * 5000,
        "=" * 5000,
        r"\frac" * 1000,
        "99999!" * 100,
    ]

    async def main():
        verifiers = {"math": SelectedVerifier(MathVerifier(), "reroll-verifiers-math")}
        async with Scorer(verifiers, ScoringConfig(workers=2, deadline_seconds=5)) as scorer:
            task = Task("", {"math": "7"}, "test", 0, "0")
            answers = [*hostile, *(["7", "8", "3+4"] * 10)]
            nodes = [Node(None, {"role": "assistant", "content": boxed(text)}, True, [1], [True]) for text in answers]
            return await scorer.score_group(task, [Trace("t", task, [node]) for node in nodes])

    found = [verdicts["math"] for verdicts in asyncio.run(main())]
    assert all(verdict.score in (0.0, None) for verdict in found[: len(hostile)])
    assert [verdict.score for verdict in found[len(hostile) :]] == [1.0, 0.0, 1.0] * 10
