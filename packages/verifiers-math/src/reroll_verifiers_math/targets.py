"""Targets: what a task says is right, read once and remembered."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

from reroll_verifiers_math import choices, sympy_judge
from reroll_verifiers_math.boxes import boxed
from reroll_verifiers_math.extraction import find_answer
from reroll_verifiers_math.nodes import Words
from reroll_verifiers_math.reading import cleaned, is_mathematics, read
from reroll_verifiers_math.text import folded, tidy

SHOWN = 80
"""Characters of a target that an error repeats."""
_TEXT = re.compile(r"\\text(?:bf|it|rm)?\s*\{[^{}]*\}")


class Gold(NamedTuple):
    """A target.

    Attributes:
        text: what answers are compared with.
        choice: the letters of a multiple choice, None for other targets.
        bare: whether it is those letters and nothing else.
        option: the text of the option, where it stands behind its letter.
        words: whether it is words and no mathematics.
        problem: why nothing can be compared with it; None for a good one.
    """

    text: str
    choice: str | None
    bare: bool
    option: str | None
    words: bool
    problem: str | None


def target_text(target: Any) -> str | None:
    """The target as a text; None if it is neither text nor a finite number."""
    if isinstance(target, bool) or not isinstance(target, (str, int, float)):
        return None
    if isinstance(target, float) and not math.isfinite(target):
        return None
    try:
        return str(target)
    except ValueError:  # an integer with more digits than Python writes
        return None


def read_gold(target: Any) -> Gold:
    """What a target says: in its boxes, where it has some; else all of it, or, of a solution in prose, its answer."""
    text = target_text(target)
    if text is None:
        shown = "one of thousands of digits" if isinstance(target, int) and target > 1 else f"{target!r:.{SHOWN}}"
        problem = f"the target of 'math' must be a text or a finite number, not {shown}"
        return Gold("", None, False, None, False, problem)
    return _read_gold(text)


@lru_cache(maxsize=2048)
def _read_gold(target: str) -> Gold:
    text = boxed(tidy(target)) or target
    if read(text) is None and len(text.split()) > 3:
        found = find_answer(text, is_mathematics)
        if found is not None and found.where in ("marker", "formula", "box"):
            text = found.text
    choice = choices.gold_choice(text)
    option = choices.option_text(text) if choice is not None else None
    problem = None if choice is not None else _problem(target, text)
    return Gold(text, choice, choices.is_bare(text), option, isinstance(read(text), Words), problem)


def _problem(target: str, text: str) -> str | None:
    shown = target if len(target) <= SHOWN else target[:SHOWN] + "…"
    plain = cleaned(text)
    if not folded(plain):
        return f"the target {shown!r} is empty"
    if read(text) is not None or not re.search(r"[\\^=<>{}]|\d\s*[-+*/]", _TEXT.sub(" ", plain)):
        return None  # mathematics, or words
    if sympy_judge.is_operation(plain) and sympy_judge.parsed(plain):
        return None
    return f"the target {shown!r} cannot be read as mathematics"
