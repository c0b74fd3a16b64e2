r"""Where the answer is in a completion. Every way takes time in proportion to the text, whatever a model wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from reroll import without_thinking

Place = Literal["tag", "boxed", "last_line", "whole"]
"""`tag`: between the last `<answer>` and `</answer>`. `boxed`: in the last `\boxed{…}`. `last_line`: the last line
that is not empty. `whole`: all of it."""

OPEN, CLOSE = "<answer>", "</answer>"

_BRACES = re.compile(r"\\boxed\s*(?P<box>\{)|\\[{}]|(?P<open>\{)|(?P<close>\})")


def find_answer(completion: str, place: Place) -> str | None:
    """The answer without white space around it, or None if there is none. Thoughts are not looked into
    (`reroll.without_thinking`)."""
    found = _FINDERS[place](without_thinking(completion))
    return (found.strip() or None) if found is not None else None


def tagged(text: str) -> str | None:
    """As reasoning-gym's own `extract_answer` finds it: tags are paired from the left, the last pair counts."""
    found, start = None, text.find(OPEN)
    while start >= 0 and (end := text.find(CLOSE, start)) >= 0:
        found = text[start + len(OPEN) : end]
        start = text.find(OPEN, end)
    return found


def boxed(text: str) -> str | None:
    r"""Content of the `\boxed{…}` that begins last, of those that are closed."""
    begun, found = -1, None
    opened: list[tuple[int, bool]] = []
    for brace in _BRACES.finditer(text):
        if brace["box"] or brace["open"]:
            opened.append((brace.end(), bool(brace["box"])))
        elif brace["close"] and opened:
            start, is_box = opened.pop()
            if is_box and start > begun:
                begun, found = start, text[start : brace.start()]
    return found


def last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1] if lines else None


_FINDERS: dict[Place, Callable[[str], str | None]] = {
    "tag": tagged,
    "boxed": boxed,
    "last_line": last_line,
    "whole": lambda text: text,
}
