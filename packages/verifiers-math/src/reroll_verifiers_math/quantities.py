"""Values with and without units: numbers, percentages, ratios, times of day."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, NamedTuple

from reroll_verifiers_math.exact import exact
from reroll_verifiers_math.identity import equal_values
from reroll_verifiers_math.nodes import Node, Number, Product, Quantity, Quotient, Ratio, symbols
from reroll_verifiers_math.numeric import CONSTANTS, constant, is_value
from reroll_verifiers_math.text import folded
from reroll_verifiers_math.units import Unit, read_unit

_PERCENT = read_unit("%")
_ANGLE = (("angle", 1),)
_TEMPERATURES = {(("celsius", 1),), (("fahrenheit", 1),)}


class Policy(NamedTuple):
    """Where the field's conventions differ; the options of the verifier say what each means."""

    rounded_decimals: int = 6
    tolerance: float = 0.0
    percent: Literal["either", "exact"] = "either"
    units: Literal["lenient", "required"] = "lenient"


def equal_ratios(gold: Node, answer: Node, policy: Policy) -> bool:
    def parts(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Ratio):
            return node.parts
        return (node.above, node.below) if isinstance(node, Quotient) else (node, Number(Fraction(1)))

    first, second = parts(gold), parts(answer)
    if len(first) != len(second) or any(exact(part) == 0 for part in (first[0], second[0])):
        return False
    return all(
        is_value(a) and is_value(b) and equal_values(Product((a, second[0])), Product((b, first[0])))
        for a, b in zip(first[1:], second[1:], strict=True)
    )


def on_clock(node: Node) -> bool:
    ratio = node.value if isinstance(node, Quantity) else node
    return isinstance(ratio, Ratio) and ratio.clock


def equal_times(gold: Node, answer: Node) -> bool:
    """Times of day. One without `am` and `pm` is of 24 hours, or of either half of the day."""
    (first, half), (second, other) = _time(gold), _time(answer)
    if first is None or second is None:
        return False
    return (
        first == second
        if half and other
        else any(first == second + shift for shift in ((0,) if half == other else (0, 720, -720)))
    )


def _time(node: Node) -> tuple[Fraction | None, str]:
    half = node.unit.lower().replace(".", "").replace(" ", "") if isinstance(node, Quantity) else ""
    ratio = node.value if isinstance(node, Quantity) else node
    assert isinstance(ratio, Ratio)
    hours, minutes = exact(ratio.parts[0]), exact(ratio.parts[1])
    if hours is None or minutes is None or len(ratio.parts) > 3:
        return None, half
    if half in ("am", "pm"):
        hours = hours % 12 + (12 if half == "pm" else 0)
    seconds = exact(ratio.parts[2]) if len(ratio.parts) == 3 else Fraction(0)
    return None if seconds is None else hours * 60 + minutes + seconds / 60, half if half in ("am", "pm") else ""


# Values


def equal_quantities(gold: Node, answer: Node, policy: Policy) -> bool:
    first, second = _quantity(gold), _quantity(answer)
    units = read_unit(first.unit), read_unit(second.unit)
    if _PERCENT in units:
        return _equal_percents(first, second, units[0] == _PERCENT, units[1] == _PERCENT, policy)
    if units[0] is not None and units[1] is not None and not _degrees_of_two_kinds(units[0], units[1]):
        return _equal_measures(first, second, units[0], units[1], policy)
    if _modulus(first.unit) and _modulus(second.unit) and first.unit != second.unit:
        return False
    if (first.unit == "") != (second.unit == "") and policy.units == "required":
        return False
    if symbols(first.value) - CONSTANTS and units == (None, None) and folded(first.unit) != folded(second.unit):
        return False  # words behind a variable say something of it
    if _equal_numbers(first.value, second.value, policy):
        return True
    angles = [unit is not None and unit.dimensions == _ANGLE for unit in units]
    if not any(angles) or not is_value(first.value) or not is_value(second.value):
        return False
    a, b = (_in_radians(item) if angle else item.value for item, angle in zip((first, second), angles, strict=True))
    return equal_values(a, b)


def _equal_measures(first: Quantity, second: Quantity, unit: Unit, other: Unit, policy: Policy) -> bool:
    if unit.dimensions != other.dimensions:
        return False
    if unit.factor == other.factor:
        return _equal_numbers(first.value, second.value, policy)
    if not is_value(first.value) or not is_value(second.value):
        return False
    if unit.dimensions == _ANGLE:
        return equal_values(_in_radians(first), _in_radians(second))
    return equal_values(Product((Number(unit.factor), first.value)), Product((Number(other.factor), second.value)))


def _degrees_of_two_kinds(first: Unit, second: Unit) -> bool:
    """A degree that does not say of what, beside one of temperature."""
    dimensions = {first.dimensions, second.dimensions}
    return _ANGLE in dimensions and bool(dimensions & _TEMPERATURES)


def _quantity(node: Node) -> Quantity:
    return node if isinstance(node, Quantity) else Quantity(node, "")


def _modulus(unit: str) -> bool:
    return unit.startswith("mod")


def _in_radians(item: Quantity) -> Node:
    """Degrees as what `numeric` knows them by; radians are plain numbers."""
    unit = read_unit(item.unit)
    return Quantity(item.value, "°") if unit is not None and unit.factor == 1 else item.value


def _equal_percents(first: Quantity, second: Quantity, is_first: bool, is_second: bool, policy: Policy) -> bool:
    if is_first and is_second:
        return _equal_numbers(first.value, second.value, policy)
    percentage, plain = (first.value, second.value) if is_first else (second.value, first.value)
    share: Node = Product((percentage, Number(Fraction(1, 100))))
    if isinstance(percentage, Number):
        places = percentage.places + 2 if percentage.places else 0
        share = Number(percentage.value / 100, places, percentage.digits)
    return _equal_numbers(share, plain, policy) or (
        policy.percent == "either" and _equal_numbers(percentage, plain, policy)
    )


def _equal_numbers(gold: Node, answer: Node, policy: Policy) -> bool:
    if not (is_value(gold) and is_value(answer)):
        return gold == answer
    if isinstance(gold, Number) and isinstance(answer, Number):
        return equal_literals(gold, answer, policy)
    if equal_values(gold, answer):
        return True
    a, b = constant(gold), constant(answer)
    if a is None or b is None or a.imag or b.imag:
        return False
    for literal, other in ((gold, b), (answer, a)):
        if isinstance(literal, Number) and is_rounding(literal, policy):
            shift = 10**literal.places
            if abs(other * shift - int(literal.value * shift)) <= 0.5:
                return True
    return bool(policy.tolerance and abs(a - b) <= policy.tolerance * abs(a))


def equal_literals(gold: Number, answer: Number, policy: Policy) -> bool:
    """Numbers in digits: equal exactly, or as one is the rounding of the other."""
    if None in (gold.numeral, answer.numeral) and (gold.numeral or gold.value) == (answer.numeral or answer.value):
        return True  # the base was left out
    difference = abs(gold.value - answer.value)
    if not difference:
        return True
    for literal in (gold, answer):
        if is_rounding(literal, policy) and difference <= Fraction(1, 2 * 10**literal.places):
            other = answer if literal is gold else gold
            if not other.places or other.places > literal.places:
                return True
    return bool(policy.tolerance) and difference <= Fraction(policy.tolerance) * abs(gold.value)


def is_rounding(number: Number, policy: Policy) -> bool:
    """Whether a decimal is long enough to stand for a number that it only rounds: in places, and in digits that are
    not zero, so that what is very small is not lost."""
    return bool(policy.rounded_decimals) and number.places >= policy.rounded_decimals and number.digits >= 5
