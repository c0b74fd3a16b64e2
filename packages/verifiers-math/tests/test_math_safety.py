"""Nothing in an answer or a target is run, and none takes for ever."""

import re

import pytest

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
    r"\int_0^{exit()} x dx",
    r"\sum_{k=1}^{open('PATH','w')} k",
]


def test_nothing_in_an_answer_is_executed(judge, monkeypatch, tmp_path):
    from sympy.parsing import sympy_parser

    evaluated = []
    evaluate = sympy_parser.eval_expr

    def spy(code, *arguments):
        evaluated.append(code)
        return evaluate(code, *arguments)

    monkeypatch.setattr(sympy_parser, "eval_expr", spy)
    for text in HOSTILE:
        text = text.replace("PATH", str(tmp_path / "owned"))
        for gold, answer in ((r"\int_0^1 x dx", f"\\boxed{{{text}}}"), (text, r"\boxed{\int x dx}"), ("x", text)):
            assert judge(gold, answer).score in (0.0, None)
    assert not (tmp_path / "owned").exists()
    # The spy sees what SymPy reads, and that is the digits of formulas, and names that SymPy has itself.
    assert evaluated
    for code in evaluated:
        assert re.fullmatch(r"(Integer|Float) \('?[\d.]+'? ?\)|Symbol \('[A-Za-z]+' \)|E ", code), code


PIECES = [
    *(
        "=",
        "{",
        "}",
        r"\frac",
        r"\frac{",
        r"\boxed{",
        r"\boxed{1},",
        "(",
        "[",
        r"\(",
        r"\[",
        "$",
        "$1 ",
        "1",
        "1,",
        "1/",
    ),
    *(
        "1 ",
        "^",
        "2^",
        "9^9^",
        "-",
        "+1",
        "\n",
        " ",
        "answer ",
        "answer is ",
        "####",
        "**",
        "<answer>",
        "<think>",
        ". ",
    ),
    *(
        "x = y. ",
        r"\foo. ",
        r"\sqrt{",
        "!",
        "%",
        "|x",
        "∪",
        "±1",
        r"\text{",
        "A ",
        "(A) ",
        "1。",
        "x",
        "sin ",
        r"\\",
        "_",
    ),
    *("'", "°", r"\begin{cases}", "and ", "1e9", "0.(3)", "½", "<|", "(1,", "1:", "5 cm ", r"\begin{pmatrix}", "a_"),
]


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_repeated_without_end_gets_a_verdict(judge, piece):
    """There is no clock in this test: where time grows with the square of the length, the suite's own limit ends it."""
    text = piece * (3_000 // len(piece))
    for completion in (text, f"\\boxed{{{text}}}", f"The answer is {text}", f"\\boxed{{42}} {text}"):
        assert judge("42", completion).state in ("ok", "rejected")
    text = piece * (100_000 // len(piece))
    for gold, completion in (("x+1", text), ("A", f"The answer is {text}")):
        assert judge(gold, completion).state in ("ok", "rejected")


@pytest.mark.parametrize(
    "answer",
    [
        r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
        "9^{9^{9^{9}}}",
        r"2^{10^{100}}",
        "(((99999!)!)!)!",
        r"\binom{10^{9}}{5 \cdot 10^{8}}",
        "+".join(f"\\frac{{1}}{{{k}^{{500}}}}" for k in range(3, 300)),
        "(" + "+".join("abcdefgh") + ")^{1000}",
        "".join(f"(x-{k})" for k in range(600)),
        r"\exp(\exp(\exp(\exp(10))))",
        r"\sin(10^{100000})",
        "e^{e^{e^{e^{e^{5}}}}}",
        "0.(" + "3" * 4000 + ")",
        r"\sqrt[10^{9}]{2}",
        r"\sqrt[7919]{2^{30000}}",
        "10^{-100000}",
        r"\gcd(10^{9000}, 3^{9000})",
    ],
)
def test_what_is_large_gets_a_verdict(judge, answer):
    assert judge("4951077", f"\\boxed{{{answer}}}").score == 0.0
    assert judge("x+1", f"\\boxed{{{answer}}}").score == 0.0
    assert judge(answer, r"\boxed{4951077}").score in (0.0, None)
