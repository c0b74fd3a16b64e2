"""Texts of answers → nodes, in each way in which they may be meant."""

from __future__ import annotations

import re
from functools import lru_cache

from reroll_verifiers_math.grammar import parse
from reroll_verifiers_math.lexer import Unreadable
from reroll_verifiers_math.nodes import Listing, Node, Quantity, Words, walk
from reroll_verifiers_math.text import tidy

LENGTH = 20_000
"""Characters of a text that is read at all."""

_MONEY = re.compile(r"[\s*]*-?\\?\$\s*[\d.,]+(?:\s*[A-Za-z]+)?[\s.*]*")
_DELIMITERS = re.compile(r"(?<!\\)\$+|(?<!\\)\\[()\[\]]|(?<![\w)}])\*\*|\*\*(?![\w(\\{-])|^\s*[*`]+|[*`]+$")
_COMMA = re.compile(r"\d,\d")


@lru_cache(maxsize=2048)
def cleaned(text: str) -> str:
    """The text without the marks of formulas around it, in one spelling."""
    if not _MONEY.fullmatch(text):
        text = _DELIMITERS.sub(" ", text)
    text = tidy(text).strip(" \t\n\r,;:")
    return text if text.endswith("..") else text.removesuffix(".").rstrip()


def read(text: str) -> Node | None:
    """The node of a text as it is most likely meant; None if it cannot be read."""
    found = readings(text)
    return found[0] if found else None


def readings(text: str) -> list[Node]:
    """What the text may mean, the likeliest first: a comma between digits may group them, part them, or stand before
    decimals."""
    if len(text) > LENGTH:
        return []
    text = cleaned(text)
    found = [_read(text)]
    if _COMMA.search(text):
        apart = _read(text, grouped=False)
        if isinstance(apart, Listing) and not re.search(r",0\d", text):
            found.append(apart)
        if not re.search(r"[\[(]|\\\{", text):
            found.append(_read(text, decimal_comma=True))
    return [node for number, node in enumerate(found) if node is not None and node not in found[:number]]


def _read(text: str, grouped: bool = True, decimal_comma: bool = False) -> Node | None:
    try:
        return parse(text, grouped, decimal_comma)
    except Unreadable:
        return None


def is_mathematics(text: str) -> bool:
    """Whether the whole text can be read and is not only words."""
    node = read(text)
    if node is None:
        return False
    return not any(isinstance(item, Words) for item in walk(node)) and not (
        isinstance(node, Quantity) and len(node.unit.split()) > 4
    )
