"""Values of expressions as fractions, where they have one."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from reroll_verifiers_math.nodes import Call, Node, Number, Power, Product, Quantity, Quotient, Sum

INTEGER_BITS = 32_000
"""Bits of the largest numerator and denominator that are worked with."""
OPERATIONS = 20_000
"""Nodes that are evaluated for one value."""


class Undefined(Exception):
    """It has no value: a division by zero, a function outside of its domain, something that is no number."""


class TooLarge(Exception):
    """Its value takes more than the bounds allow."""


@lru_cache(maxsize=2048)
def exact(node: Node) -> Fraction | None:
    """The value as a fraction; None where it is irrational, has variables, or is too large."""
    try:
        return _exact(node, [OPERATIONS])
    except (TooLarge, Undefined, ZeroDivisionError, OverflowError, ValueError):
        return None


def _exact(node: Node, left: list[int]) -> Fraction | None:
    left[0] -= 1
    if left[0] < 0:
        raise TooLarge
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Sum):
        total = Fraction(0)
        for term in node.terms:
            value = _exact(term, left)
            if value is None:
                return None
            total = _bounded(total + value)
        return total
    if isinstance(node, Product):
        product = Fraction(1)
        for factor in node.factors:
            value = _exact(factor, left)
            if value is None:
                return None
            product = _bounded(product * value)
        return product
    if isinstance(node, Quotient):
        above, below = _exact(node.above, left), _exact(node.below, left)
        return None if above is None or below is None else _bounded(above / below)
    if isinstance(node, Power):
        base, exponent = _exact(node.base, left), _exact(node.exponent, left)
        return None if base is None or exponent is None else _exact_power(base, exponent)
    if isinstance(node, Call):
        return _exact_call(node, left)
    if isinstance(node, Quantity) and node.unit == "%":
        value = _exact(node.value, left)
        return None if value is None else value / 100
    return None


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > INTEGER_BITS:
        raise TooLarge
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base in (0, 1, -1):
            return base ** (int(exponent) if base == 0 else int(exponent) % 2 or 2)
        if bits * abs(exponent) > INTEGER_BITS:
            raise TooLarge
        return base ** int(exponent)
    if base < 0 and exponent.denominator % 2 == 0:
        return None
    if exponent.denominator > 64:
        return None
    root = _exact_root(base, exponent.denominator)
    return None if root is None else _exact_power(root, Fraction(exponent.numerator))


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if value < 0:
        root = _exact_root(-value, degree) if degree % 2 else None
        return None if root is None else -root
    above, below = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:  # Newton's iteration, from above
        root = 1 << -(-value.bit_length() // degree)
        while True:
            better = ((degree - 1) * root + value // root ** (degree - 1)) // degree if root else 0
            if better >= root:
                break
            root = better
    return root if root**degree == value else None


def _exact_call(node: Call, left: list[int]) -> Fraction | None:
    if node.name not in _EXACT or not node.arguments:
        return None
    values = [_exact(argument, left) for argument in node.arguments]
    known = [value for value in values if value is not None]
    return (
        _EXACT[node.name](*known) if len(known) == len(values) and len(known) in _ARITY.get(node.name, (1,)) else None
    )


def _whole(value: Fraction, most: int) -> int:
    if value.denominator != 1 or value < 0:
        raise Undefined
    if value > most:
        raise TooLarge
    return int(value)


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    return Fraction(math.comb(_whole(n, 2000), _whole(k, 2000)))


_EXACT: dict[str, Any] = {
    "sqrt": lambda value: _exact_root(value, 2),
    "cbrt": lambda value: _exact_root(value, 3),
    "root": lambda value, degree: _exact_root(value, _whole(degree, 64)) if degree else None,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "factorial": lambda value: Fraction(math.factorial(_whole(value, 2000))),
    "factorial2": lambda value: Fraction(math.prod(range(_whole(value, 2000), 0, -2))),
    "binom": _binomial,
    "gcd": lambda a, b: Fraction(math.gcd(int(a), int(b))) if a.denominator == b.denominator == 1 else None,
    "lcm": lambda a, b: Fraction(math.lcm(int(a), int(b))) if a.denominator == b.denominator == 1 else None,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}
_ARITY = {"root": (2,), "binom": (2,), "gcd": (2,), "lcm": (2,), "max": range(1, 99), "min": range(1, 99)}
