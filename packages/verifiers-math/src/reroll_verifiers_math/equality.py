"""Whether two answers are the same: as text and as numbers first, as mathematics only where that is needed.

Nothing in an answer is run as a program. Numbers are read by a pattern, formulas by the grammar of
math-verify's LaTeX parser, of which digits alone are handed on as text. Its other reader, for bare
expressions, gives them to Python's `eval` and is never asked; nor is SymPy's own.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from reroll_verifiers_math.extraction import DECIMAL

ROUNDED_DECIMALS = 6
"""A decimal with at least so many places may stand for the number that it is a rounding of."""

# `\\` ends a row of a matrix: what follows it is no command of its own.
_NOISE = re.compile(r"\\(?:left|right)(?![a-z])|(?<!\\)\\[!,;:]|\\displaystyle(?![a-z])|\^\s*\{?\s*\\circ\s*\}?")
_SPACES = re.compile(r"(?:\\q?quad(?![a-z])|[\s~]|(?<!\\)\\ )+")
_UNIT = re.compile(r"(?<=[\d}])\s*\\(?:text|textbf|textnormal|textrm|mathrm|mbox)\s*\{[^{}]*\}$")
_PERCENT = re.compile(r"\s*(?:\\?%|percent|pct)$", re.IGNORECASE)
_NUMBER = re.compile(
    rf"(?P<sign>[-−+]?)\s*(?:(?P<whole>\d+)\s*(?:\s|(?=\\)))?"
    rf"(?:\\frac\s*\{{\s*(?P<a>-?\d+)\s*\}}\s*\{{\s*(?P<b>-?\d+)\s*\}}|(?P<c>\d+)\s*/\s*(?P<d>\d+))"
    rf"|(?P<decimal>[-−+]?\s*{DECIMAL})"
)


class Number(NamedTuple):
    """`places` counts the digits after the point, 0 for what is written without one."""

    value: Fraction
    places: int
    percent: bool


def normal(text: str) -> str:
    """The text without what changes its looks alone."""
    text = text.strip().removesuffix(".").strip().strip("$").strip()
    text = _NOISE.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    return _SPACES.sub(" ", text.replace("\\$", "").replace("\\%", "%")).strip()


def number(text: str) -> Number | None:
    """A number written in digits, as a fraction, or as a mixed number; None for anything else."""
    text = _UNIT.sub("", normal(text)).strip().lstrip("$€£¥").strip()
    percent = _PERCENT.search(text)
    match = _NUMBER.fullmatch(text[: percent.start()] if percent else text)
    if match is None:
        return None
    try:
        if match["decimal"]:
            digits = re.sub(r"[\s,{}+]", "", match["decimal"]).replace("−", "-")
            return Number(Fraction(digits), len(digits.partition(".")[2]), percent is not None)
        value = int(match["whole"] or 0) + Fraction(int(match["a"] or match["c"]), int(match["b"] or match["d"]))
    except (ValueError, ZeroDivisionError):  # more digits than an integer may have, or a zero below
        return None
    return Number(-value if match["sign"] in ("-", "−") else value, 0, percent is not None)


def equal_numbers(gold: Number, answer: Number) -> bool:
    """Exactly equal, or one the rounding of the other to `ROUNDED_DECIMALS` places or more. A percentage
    equals both the number before its sign and a hundredth of it, unless both are percentages."""
    if gold.percent == answer.percent:
        return _close(gold, answer)
    percentage, plain = (gold, answer) if gold.percent else (answer, gold)
    hundredth = Number(percentage.value / 100, percentage.places + 2 if percentage.places else 0, False)
    return _close(percentage, plain) or _close(hundredth, plain)


def _close(a: Number, b: Number) -> bool:
    if a.value == b.value:
        return True
    places = min((number.places for number in (a, b) if number.places), default=0)
    return places >= ROUNDED_DECIMALS and abs(a.value - b.value) <= Fraction(1, 2 * 10**places)


@lru_cache(maxsize=4096)
def parsed(text: str) -> Any:
    """The expressions that math-verify reads in a formula, as a list; empty if it reads none."""
    from math_verify import LatexExtractionConfig, parse

    # What it says about failures is no news: they are verdicts. The time limits it offers are signals,
    # which work in a main thread alone; the deadline of whoever calls holds instead.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    text = normal(text)
    formula = f"\\boxed{{{text}}}" if "$" in text else f"${text}$"
    config = [LatexExtractionConfig()]
    try:
        return parse(formula, config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise  # says nothing about the formula
    except Exception:
        return []


def equal_formulas(gold: str, answer: str) -> bool:
    """Whether math-verify finds the answer equal; what it cannot read or compare is not."""
    from math_verify import verify

    try:
        return bool(verify(parsed(gold), parsed(answer), timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:
        return False
