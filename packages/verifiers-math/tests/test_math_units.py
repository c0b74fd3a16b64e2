"""Units: what can be compared with what, and what is not a unit."""

from fractions import Fraction

import pytest

from reroll_verifiers_math.judging import judge
from reroll_verifiers_math.quantities import Policy
from reroll_verifiers_math.units import read_unit

EQUAL = [
    ("12 inches", r"1\text{ ft}"),
    (r"1\text{ kW}", r"1000\text{ W}"),
    ("1 kJ", "1000 J"),
    (r"1\text{ min}", r"60\text{ sec}"),
    ("2 min", "120 s"),
    ("1 hour", "60 minutes"),
    (r"5\text{ m}^2", "5 square meters"),
    ("5 cm^3", r"5\text{ ml}"),
    ("36 km/h", "10 m/s"),
    ("30 mph", "30 miles per hour"),
    ("$10", "1000 cents"),
    ("20°C", "20 degrees Celsius"),
    (r"20^\circ", "20"),
    ("20°C", "20°"),
    ("5 apples", "5"),
    ("5 apples", "5 red apples"),
    ("3 MHz", "3000 kHz"),
    (r"9 \pmod{11}", "9"),
]
UNEQUAL = [
    (r"5\text{ J}", r"5\text{ kJ}"),
    (r"5\text{ V}", r"5\text{ W}"),
    (r"5\text{ A}", r"5\text{ m}"),
    (r"20\text{ K}", r"20\text{ kg}"),
    (r"5\text{ MPa}", r"5\text{ kPa}"),
    ("5 MHz", "5 mHz"),
    ("20°C", "20°F"),
    ("5 cm", "5 cm^2"),
    ("5 hours", "5 minutes"),
    ("$18", "18 cents"),
    ("5 euros", "5 dollars"),
    ("9 mod 11", "9 mod 12"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold, answer):
    assert judge(gold, answer, Policy()) and judge(answer, gold, Policy())


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL)
def test_unequal(gold, answer):
    assert not judge(gold, answer, Policy()) and not judge(answer, gold, Policy())


def test_units_are_read_exactly():
    assert read_unit("km/h").factor == Fraction(5, 18)
    assert read_unit("m s^-2").dimensions == (("length", 1), ("time", -2))
    assert read_unit("mW").factor * 10**9 == read_unit("MW").factor
    for text in ("", "apples", "x", "kmh^", "m/", "square", "the"):
        assert read_unit(text) is None


@pytest.mark.parametrize("text", [r"\min(3, 5)", "min(3, 5)", r"\sec(0)"])
def test_functions_with_the_names_of_units(text):
    assert judge("3" if "min" in text else "1", text, Policy())
