"""Formulas in prose: where they are, which belong together, and where sentences end beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from reroll_verifiers_math.boxes import BETWEEN

_OPENING = re.compile(r"\\(?:\(|\[|begin\{(?:[pbvBV]?matrix|array|cases)\})|\$\$?|\\.", re.DOTALL)
_MONEY = re.compile(r"\s*[\d.,]+\s*(?:[A-Za-z(*]|[.,;]?\s|$)")
_STOP = re.compile(r"[.!?](?=\s|$)(?<!\b[A-Z]\.)|[。！？؟]|\n+")
_DEFINITION = re.compile(r"\s*\\?[A-Za-z]+(?:_\w|_\{\w+\})?'?\s*(?:\([\w,\s]+\)\s*)?=[^=]+$")


class Formula(NamedTuple):
    content: str
    start: int
    end: int


def formulas_of(text: str) -> Iterator[Formula]:
    """Formulas between `$` and their like. A `$` of money opens none, nor does what is never closed."""
    position = 0
    unclosed: set[str] = set()
    while (opening := _OPENING.search(text, position)) is not None:
        mark, position = opening[0], opening.end()
        closing = _closing(mark)
        if closing is None or closing in unclosed:
            continue
        end = text.find(closing, position)
        if end < 0:
            unclosed.add(closing)  # looked for once: the text may be nothing but openings
            continue
        content, start = text[position:end], opening.start()
        if mark == "$" and (_is_money(content) or text[end + 1 : end + 2].isdigit()):
            continue
        position = end + len(closing)
        if mark.startswith("\\begin"):
            content = text[start:position]
        if content.strip():
            yield Formula(content.strip(), start, position)


def _closing(mark: str) -> str | None:
    if mark.startswith("\\begin"):
        return "\\end" + mark.removeprefix("\\begin")
    return {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}.get(mark)


def _is_money(inline: str) -> bool:
    """Whether what stands between two `$` is prose between two amounts."""
    if not _MONEY.match(inline) or re.fullmatch(r"\s*[\d.,]+\s*", inline):
        return False
    return bool(re.search(r"[A-Za-z]{3,}|\($", re.sub(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?", "", inline)))


def neighbours(text: str, formulas: list[Formula], first: bool) -> tuple[str, int]:
    """The first or last formula with those that only a comma or `and` parts from it, and where they end."""
    ordered = formulas if first else formulas[::-1]
    parts = [ordered[0]]
    for item in ordered[1:]:
        between = text[parts[-1].end : item.start] if first else text[item.end : parts[0].start]
        if not (between and len(between) <= 20 and BETWEEN.fullmatch(between)):
            break
        if any("=" in formula.content and not _DEFINITION.match(formula.content) for formula in (item, parts[0])):
            break  # steps of the work, not parts of the answer
        parts = [*parts, item] if first else [item, *parts]
    return ", ".join(item.content for item in parts), parts[-1].end


def with_unit(text: str, found: tuple[str, int]) -> str:
    """A percent sign behind a formula belongs to it."""
    content, end = found
    percent = re.match(r"\s*(?:\\?%|percent\b|pct\b)", text[end : end + 12])
    return content + "%" if percent else content


def sentence_ends(text: str, formulas: list[Formula]) -> Iterator[int]:
    number = 0
    for stop in _STOP.finditer(text):
        while number < len(formulas) and formulas[number].end <= stop.start():
            number += 1
        if number == len(formulas) or stop.start() < formulas[number].start:
            yield stop.end()


def sentence_end(text: str, formulas: list[Formula]) -> int:
    return next(sentence_ends(text, formulas), len(text))
