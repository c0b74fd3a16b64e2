"""Numbers as they are written in digits."""

from __future__ import annotations

import re
from fractions import Fraction

from reroll_verifiers_math.lexer import Unreadable
from reroll_verifiers_math.nodes import Node, Number

EXPONENT = 5000
"""Largest power of ten in `1.5e300`."""
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


def literal_number(text: str) -> Number:
    """The number of a token; Unreadable if it is none, or has more digits than are read."""
    if "_" in text:
        numeral, base = text.rstrip("} ").replace("{", "").split("_")
        try:
            return Number(Fraction(int(numeral, int(base))), 0, 0, int(base), Fraction(int(numeral, 36)))
        except ValueError as error:
            raise Unreadable(f"the number {text!r}") from error
    try:
        if text[-1] in ")}" or "\\" in text:
            return Number(_repeating(text))
        digits, letter, exponent = text.lower().partition("e")
        if letter and abs(int(exponent)) > EXPONENT:
            raise Unreadable("an exponent beyond bounds")
        value = Fraction(digits) * Fraction(10) ** int(exponent) if letter else Fraction(digits)
    except (ValueError, ZeroDivisionError) as error:
        raise Unreadable(f"the number {text[:20]!r}") from error
    whole, point, decimals = digits.partition(".")
    if not point:
        return Number(value)
    return Number(value, max(0, len(decimals) - int(exponent or 0)), len((whole + decimals).lstrip("0")))


def _repeating(text: str) -> Fraction:
    """`0.1\\overline{6}`, `0.1(6)`: digits that repeat for ever."""
    head, *rest = re.split(r"\\(?:overline|bar|dot)\s*\{?|\(", text)
    repeated = re.sub(r"\D", "", "".join(rest))
    whole, _, decimals = head.partition(".")
    scale = 10 ** len(decimals)
    return Fraction(int((whole + decimals) or 0), scale) + Fraction(int(repeated), scale * (10 ** len(repeated) - 1))


def numeral(number: Number, index: str) -> Node:
    """`101_2`: digits in a base."""
    base = _BASES.get(index.strip().lower().removeprefix("base").strip(), 0)
    try:
        base = base or int(index)
        if number.places or not 2 <= base <= 36:
            raise ValueError
        return Number(Fraction(int(str(number.value.numerator), base)), 0, 0, base, number.value)
    except ValueError:
        raise Unreadable(f"a number with the index {index!r}") from None
