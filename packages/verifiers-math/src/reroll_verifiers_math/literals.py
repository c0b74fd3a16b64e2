r"""The common case, without reading formulas: a target and an answer in digits.

Most targets are integers or fractions, and most answers to them `\boxed{42}` or a bare number. What this module does
not see at once it leaves to the others, and what it says is what they would say; a test compares them.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from reroll_verifiers_math.nodes import Number

_LITERAL = re.compile(
    r"\s*\$?\s*(?P<sign>-?)(?:(?P<whole>\d{1,18})(?:\.(?P<decimals>\d{1,18}))?|(?P<a>\d{1,18})/(?P<b>\d{1,18})"
    r"|\\[dt]?frac\{(?P<c>-?\d{1,18})\}\{(?P<d>\d{1,18})\})\s*\$?\s*"
)
_BOX = "\\boxed{"
LITERAL_CHARS = 80
AFTER_CHARS = 40
"""Characters behind a box, of punctuation alone, that leave the case a common one."""
_AFTER = re.compile(r"[\s$.*)\]\\,]*")


def literal_number(text: str) -> Number | None:
    """The number, if the text is nothing but one in digits."""
    return _literal(text) if len(text) <= LITERAL_CHARS else None


@lru_cache(maxsize=4096)
def _literal(text: str) -> Number | None:
    match = _LITERAL.fullmatch(text)
    if match is None:
        return None
    above, below = match["a"] or match["c"], match["b"] or match["d"]
    if above is not None:
        if not int(below):
            return None
        value, places, digits = Fraction(int(above), int(below)), 0, 0
    elif match["decimals"] is not None:
        written = match["whole"] + match["decimals"]
        value, places, digits = (
            Fraction(int(written), 10 ** len(match["decimals"])),
            len(match["decimals"]),
            len(written.lstrip("0")),
        )
    else:
        value, places, digits = Fraction(int(match["whole"])), 0, 0
    return Number(-value if match["sign"] else value, places, digits)


def literal_answer(text: str, in_box: bool = False) -> Number | None:
    r"""The number in the visible part of a completion that ends with `\boxed{number}` and has no other box, or is a
    number and no more, which `in_box` rules out."""
    if not in_box and (alone := literal_number(text)) is not None:
        return alone
    start = text.rfind(_BOX)
    if start < 0 or text.find("boxed") != start + 1 or "<answer" in text:
        return None
    begin = start + len(_BOX)
    end = text.find("}", begin)
    if text.startswith(("\\frac{", "\\dfrac{", "\\tfrac{"), begin):
        end = text.find("}", text.find("}", end + 1) + 1)
    if end < 0 or len(text) - end > AFTER_CHARS or not _AFTER.fullmatch(text, end + 1):
        return None
    return literal_number(text[begin:end])
