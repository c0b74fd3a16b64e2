"""What tells a judge's own words from those that it was shown and repeats: quotations, lines that begin with `>`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reroll.api.thinking import BEGINS, ENDS

CLOSING = re.compile(r"</(?=\s*(?:question|reference|answer)\b)", re.IGNORECASE)
"""The beginning of what would end a text in the default prompt."""
THINKING = re.compile("|".join(map(re.escape, (*BEGINS, *ENDS))))
"""A mark of thinking: of a judge that repeats one, the words around it would not be read."""
LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""What ends a line for whoever shows a text, beside a line feed (Python's `str.splitlines`)."""
QUOTING_ROUNDS = 3
"""In which the verdicts in a text are looked for again, since a quotation changes what stands around it."""


def inert(text: str) -> str:
    """The text in lines, without what would end it in the prompt or begin or end thinking where a judge repeats it."""
    lines = LINE_END.sub("\n", text)
    return CLOSING.sub("< /", THINKING.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", lines))


def _is_quotation(line: str) -> bool:
    return line.lstrip().startswith(">")


def bare(text: str) -> str:
    """A judge's text in lines, without the words of its quotations. What marks thinking in one is the judge's own, and
    what is behind such a mark is still quoted."""
    return "\n".join(
        ">" + "".join(f"{mark}>" for mark in THINKING.findall(line)) if _is_quotation(line) else line
        for line in LINE_END.sub("\n", text).split("\n")
    )


def quoted(text: str, verdict: re.Pattern[str]) -> str:
    """The text, with `> ` before every line in which it reads like a verdict: none is found in what this gives."""
    lines = LINE_END.sub("\n", text).split("\n")
    for _ in range(QUOTING_ROUNDS):
        touched = {number for found in matches(lines, verdict) for number in found.lines}
        if not touched:
            return "\n".join(lines)
        for number in touched:
            lines[number] = f"> {lines[number]}"
    return "\n".join(f"> {line}" for line in lines)


class Match(NamedTuple):
    """What a pattern finds, and the lines that are no quotations and that it touches."""

    found: re.Match[str]
    lines: list[int]


def matches(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[Match]:
    """What a pattern finds outside of quotations. Of those the marks stay, so that the lines around one do not become
    neighbours."""
    own = [">" if _is_quotation(line) else line for line in lines]
    text, number, counted = "\n".join(own), 0, 0
    for found in pattern.finditer(text):
        number += text.count("\n", counted, found.start())
        counted = found.start()
        last = number + text.count("\n", found.start(), found.end())
        if touched := [line for line in range(number, last + 1) if own[line] != ">"]:
            yield Match(found, touched)
