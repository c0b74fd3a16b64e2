r"""`\boxed{…}`: finding them, and which of them are one answer in parts."""

from __future__ import annotations

import re
from typing import NamedTuple

PARTS = 100
"""Boxes, or formulas, that are taken as the parts of one answer."""
_BRACES = re.compile(
    r"\\{1,4}(?:boxed|fbox)\s*(?:(?P<box>\{)|(?P<bare>[^\s{}\\$]))|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
BETWEEN = re.compile(
    r"(?:[\s,;$，、；&]|\\[\s,;!]|\\q?quad|\\\(|\\\)|\\\[|\\\]|\\(?:text|mathrm|textrm)\s*\{\s*(?:,?\s*(?:and|or)\s*|\s*[,;]\s*)\}"
    r"|and|or|和|或|与|et|ou|y|und|oder|\*\*|(?<![A-Za-z])[A-Za-z](?:_\w)?\s*=)*"
)
_ABOUT = re.compile(r"^\s*(?:\\approx|\\simeq|≈|~)")
_ABOUT_BETWEEN = re.compile(
    r"[\s$,(]*(?:which\s+is|that\s+is|or)?\s*(?:\\approx|\\simeq|≈|approximately|about|roughly|numerically)[\s$]*"
)


class Box(NamedTuple):
    """Content of one `\\boxed{…}`, and where it begins and ends in the text."""

    content: str
    start: int
    end: int


def boxed(text: str, several: bool = True) -> str | None:
    r"""What the last `\boxed{…}` holds, or it and those beside it; None without one."""
    found = boxes(text)
    if not found:
        return None
    return joined(text, found) if several else found[-1].content


def boxes(text: str) -> list[Box]:
    r"""All `\boxed{…}` that are closed and not empty, in order; of those in each other the inner one.

    One pass, whatever is nested or left open: the text comes from a model and may be hostile.
    """
    found: list[Box] = []
    opened: list[tuple[int, int]] = []
    for token in _BRACES.finditer(text):
        if token["box"] or token["open"]:
            opened.append((token.end(), token.start() if token["box"] else -1))
        elif token["bare"]:
            found.append(Box(token["bare"], token.start(), token.end()))
        elif token["close"] and opened:
            start, box = opened.pop()
            content = text[start : token.start()].strip()
            if box >= 0 and content and not (found and found[-1].start > box):
                found.append(Box(content, box, token.end()))
    return found


def joined(text: str, found: list[Box]) -> str:
    """The last box with those right before it: several parts of one answer."""
    exact = [box for box in found if not _ABOUT.match(box.content)] or found
    parts = [exact[-1]]
    for box in reversed(exact[:-1]):
        between = text[box.end : parts[0].start]
        if len(between) <= 80 and _ABOUT_BETWEEN.fullmatch(between):
            parts[0] = box  # what was rounded follows what is exact
        elif len(parts) < PARTS and len(between) <= 80 and BETWEEN.fullmatch(between):
            parts.insert(0, box)
        else:
            break
    contents = list(dict.fromkeys(box.content for box in parts))
    return ", ".join(contents)
