"""The calculator: exact where it can be, and never more than an error on anything that a model may write."""

import asyncio
import operator
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reroll.tasks.calculator import CalculationError, Calculator, calculate

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47 + 38", "85"),
        (" (2 + 3)\n* -4 ", "-20"),
        ("6/3", "2"),
        ("1/3*3", "1"),
        ("0.1 + 0.2", "0.3"),
        ("1/8", "0.125"),
        ("1/3", "0.333333333333333"),
        ("-2/3", "-0.666666666666667"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("2**-3", "0.125"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("0**0", "1"),
        ("1_000 + 1e3", "2000"),
        ("1/10**60", "1E-60"),
        ("2**1000", str(2**1000)),
        ("+".join(["1"] * 250), "250"),
    ],
)
def test_values_are_exact_integers_or_decimals(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "is no arithmetic expression"),
        ("1 +", "is no arithmetic expression: invalid syntax"),
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2^3", r"'\^' is not read in an expression: write \*\* for a power"),
        ("1,000", "',' is not read in an expression: write numbers without it"),
        ("__import__('os')", "'i' is not read"),
        ("e", "'e' is no arithmetic"),
        ("1(2)", r"'1\(2\)' is no arithmetic"),
        ("()", "is no arithmetic"),
        ("...", "is no number"),
        ("2**0.5", "an exponent must be a whole number of up to 1000"),
        ("2**1001", "an exponent must be a whole number of up to 1000"),
        ("9**9**9", "an exponent must be"),
        ("(2**1000)**1000", "more than 4096 binary digits"),
        ("1e1001", "the exponent of '1e1001' is beyond 1000"),
        ("1" * 501, "has 501 characters; at most 500 are read"),
        ("-" * 400 + "1", "nested more than 250 deep"),
        ("(" * 240 + "1" + ")" * 240, "is no arithmetic expression"),
        ("0o7", "'o' is not read"),
        ("ü", "'ü' is not read"),
    ],
)
def test_what_cannot_be_calculated_says_why(expression, message):
    with pytest.raises(CalculationError, match=message):
        calculate(expression)


def test_the_tool_takes_one_text():
    tool = Calculator()
    assert asyncio.run(tool.call({"expression": "6*7"})) == "42"
    for arguments in ({}, {"expression": 5}, {"expression": "1", "digits": 2}):
        with pytest.raises(CalculationError, match='give one argument, "expression", a text'):
            asyncio.run(tool.call(arguments))
    function = tool.schema()["function"]
    assert (function["name"], function["parameters"]["required"]) == ("calculator", ["expression"])


def answer_or_error(expression):
    try:
        assert len(calculate(expression)) < 1300
    except CalculationError:
        pass


@given(st.text())
@example("1" + "(1)" * 160)
@example("(" * 199 + ")" * 199)
@example("9e999**999")
@example("\x00")
@example("\ud800")
def test_any_text_has_a_value_or_an_error(expression):
    answer_or_error(expression)


@given(st.text("0123456789eE_.()+-*/% \n", max_size=60) | st.text("19()*-/", max_size=500))
def test_any_text_of_its_own_symbols_has_a_value_or_an_error(expression):
    answer_or_error(expression)


numbers = st.integers(0, 10**9).map(lambda number: (str(number), Fraction(number))) | st.tuples(
    st.integers(0, 999), st.integers(0, 99)
).map(lambda pair: (f"{pair[0]}.{pair[1]:02}", Fraction(f"{pair[0]}.{pair[1]:02}")))


def joined(left, sign, right):
    if right[1] == 0 and sign in ("/", "//", "%"):
        sign = "+"
    return f"({left[0]} {sign} {right[0]})", Fraction(OPERATORS[sign](left[1], right[1]))


expressions = st.recursive(
    numbers,
    lambda parts: (
        st.builds(joined, parts, st.sampled_from(sorted(OPERATORS)), parts)
        | parts.map(lambda part: (f"-{part[0]}", -part[1]))
    ),
    max_leaves=8,
)


@given(expressions)
def test_values_agree_with_fractions(case):
    expression, expected = case
    found = Fraction(calculate(expression))
    if expected.denominator == 1:
        assert found == expected
    else:
        assert abs(found - expected) <= abs(expected) * Fraction(1, 10**14)
