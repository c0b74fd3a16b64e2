"""What the verifier says."""

import asyncio
import json
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll import Node, Task, Trace, Verdict
from reroll_verifiers_math.equality import number
from reroll_verifiers_math.verifier import MathConfig, MathVerifier


def judge(gold, answer, **options):
    task = Task("", {"math": gold}, "test", 0, "0")
    node = Node(None, {"role": "assistant", "content": answer}, True, [1], [True])
    return MathVerifier(MathConfig(**options)).score(task, Trace("t", task, [node]))


def boxed(text):
    return f"\\boxed{{{text}}}"


@pytest.fixture(scope="module", autouse=True)
def warm():
    MathVerifier().warm_up()


EQUAL = [
    ("42", "42"),
    ("0.5", r"\frac{1}{2}"),
    ("1/2", r"\dfrac{2}{4}"),
    (".4", "0.40"),
    ("8/46", r"\frac{4}{23}"),
    ("1234567", "1,234,567"),
    ("1{,}234", "1234"),
    ("-3", "−3"),
    (r"\frac{1}{12}", "0.0833333333333333"),
    (r"918\frac{1}{2}", "918.5"),
    ("5/4", "1 1/4"),
    (r"28\%", "28"),
    ("25%", "0.25"),
    (r"\$10", "10"),
    ("45", r"45^\circ"),
    ("100", r"100 \text{ dollars}"),
    (r"\boxed{12}", "12"),
    ("1+x", "x+1"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\frac{6\sqrt{5}}{5}", r"\frac{3\sqrt{20}}{5}"),
    (r"\left(1,\frac{9}{2}\right)", "(1,4.5)"),
    ("1,-2", "-2,1"),
    (r"-793 < a < 10", "(-793, 10)"),
    (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}"),
    (r"\text{Evelyn}", "Evelyn"),
    (7, "7.0"),
    (0.25, r"\frac14"),
]

UNEQUAL = [
    ("42", "43"),
    ("-5.0", "5.0"),
    ("1234566", "1,234,567"),
    (r"\frac{63}{400}", r"\frac{64}{400}"),
    (r"\frac{1}{3}", "0.3333"),
    ("0.0000001", "0.0000002"),
    ("x+2n+1", "x+1"),
    ("(-\\infty,5)", r"(-\infty, 5]"),
    ("red", "blue"),
    ("5", "five or so"),
    ("1", "__import__('os')"),
    ("10", r"\frac{1}{0}"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold, answer):
    assert judge(gold, boxed(answer)) == Verdict(1.0, {"parsed": 1.0})


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL)
def test_unequal(gold, answer):
    assert judge(gold, boxed(answer)) == Verdict(0.0, {"parsed": 1.0})


def test_no_answer():
    assert judge("1", "I do not know.") == Verdict(0.0, {"parsed": 0.0})
    assert judge("1", "") == Verdict(0.0, {"parsed": 0.0})


def test_a_long_answer_is_rejected():
    verdict = judge("1", boxed("1" + "+0" * 30), max_answer_chars=20)
    assert (verdict.score, verdict.state) == (0.0, "rejected") and "61 characters, at most 20" in verdict.detail
    assert judge("1", boxed("1"), max_answer_chars=20).state == "ok"
    assert judge("1", boxed("9" * 100_000)).state == "rejected"
    with pytest.raises(ValidationError):
        MathConfig(max_answer_chars=0)


@pytest.mark.parametrize("gold", ["", "@#&", r"\frac{", None, True, ["1"]])
def test_a_target_that_cannot_be_read_is_unknown(gold):
    verdict = judge(gold, boxed("1"))
    assert (verdict.score, verdict.state) == (None, "unknown") and verdict.detail
    # Also where the texts are the same: or only right answers would be scored.
    assert judge(gold, boxed(gold)).state in ("unknown", "ok")
    assert MathVerifier().check_target(gold)


@pytest.mark.parametrize("gold", [gold for gold, _ in EQUAL])
def test_targets_that_can_be_read_are_found_good(gold):
    assert MathVerifier().check_target(gold) is None


def test_numbers_are_read_exactly():
    assert number("0.1").value * 10 == 1
    assert number("1e5") is None and number("1/0") is None and number("2^3") is None
    assert number("1" * 5000) is None


@given(st.text(max_size=80), st.sampled_from(["1", r"\frac{x}{2}", "(1,2)", "x=3"]))
@settings(deadline=None, max_examples=60)
def test_arbitrary_answers_get_a_verdict(text, gold):
    for completion in (text, boxed(text)):
        verdict = judge(gold, completion)
        assert verdict.score in (0.0, 1.0) and verdict.state == "ok"
        assert verdict.components["parsed"] in (0.0, 1.0)


@given(st.text(max_size=40))
@settings(deadline=None, max_examples=40)
def test_arbitrary_targets_get_a_verdict(gold):
    verdict = judge(gold, boxed("1"))
    assert verdict.state in ("ok", "unknown") and verdict.scored == (verdict.state == "ok")


HOSTILE = [
    "__import__('os').system('touch PATH')",
    "__import__(chr(111)+chr(115)).system(chr(116))",
    "eval(\"open('PATH','w')\")",
    r"\text{__import__('os').system('touch PATH')}",
    "().__class__.__base__.__subclasses__()",
    "lambda: open('PATH','w')",
    "3+open('PATH','w').write('1')",
    "1/1+exec(\"open('PATH','w')\")",
    "f(open('PATH','w'))",
    "f(exit(),1)",
    r"\gcd(exit(),3)",
    r"\max(print(1),2)",
    r"\operatorname{diag}(exit(),1)",
    "f_{print(1)}(x)",
    "x.__class__",
    "1e5",
]


def test_nothing_in_an_answer_is_executed(monkeypatch, tmp_path):
    from sympy.parsing import sympy_parser

    evaluated = []
    evaluate = sympy_parser.eval_expr

    def spy(code, *arguments):
        evaluated.append(code)
        return evaluate(code, *arguments)

    monkeypatch.setattr(sympy_parser, "eval_expr", spy)
    for text in HOSTILE:
        text = text.replace("PATH", str(tmp_path / "owned"))
        for gold, answer in ((r"\sqrt{2}", boxed(text)), (text, boxed(r"\sqrt{2}")), ("x", text)):
            assert judge(gold, answer).score in (0.0, None)
    assert not (tmp_path / "owned").exists()
    # The spy sees what SymPy reads, and that is the digits of formulas.
    assert evaluated
    for code in evaluated:
        assert re.fullmatch(r"(Integer|Float) \('?[\d.]+'? ?\)", code), code


def test_it_works_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(judge("1+x", boxed("x+1"))))
    thread.start()
    thread.join()
    assert found == [Verdict(1.0, {"parsed": 1.0})]


def test_importing_the_plugin_is_light():
    code = (
        "import sys, json, reroll_verifiers_math.plugin as plugin; print(json.dumps([m for m in"
        " ('sympy', 'math_verify', 'latex2sympy2_extended') if m in sys.modules]));"
        "assert [cls.name for cls in plugin.reroll_verifiers()] == ['math']"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []


def test_in_the_scoring_pool_a_formula_without_end_times_out():
    from reroll.rollouts.scoring.config import ScoringConfig
    from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

    async def main():
        verifiers = {"math": SelectedVerifier(MathVerifier(), "reroll-verifiers-math")}
        async with Scorer(verifiers, ScoringConfig(workers=1, deadline_seconds=2)) as scorer:
            task = Task("", {"math": "7"}, "test", 0, "0")
            answers = ["7", "8", r"\frac{5^{5^{5^{5^5}}} - 5}{16}", "3+4"]
            nodes = [Node(None, {"role": "assistant", "content": boxed(text)}, True, [1], [True]) for text in answers]
            return await scorer.score_group(task, [Trace("t", task, [node]) for node in nodes])

    states = [(found["math"].score, found["math"].state) for found in asyncio.run(main())]
    assert states == [(1.0, "ok"), (0.0, "ok"), (None, "timeout"), (1.0, "ok")]
