"""Instructions about brackets, quotes, emojis and capitals (IFBench, `format:`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import emoji

from reroll_verifiers_if.english import MINOR_WORDS
from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.parameters import word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import bare, has_content, sentences, tokens

_BRACKETS = re.compile(r"[()\[\]{}]")
_CLOSES = {")": "(", "]": "[", "}": "{"}
_STRAIGHT = str.maketrans("“”„‘’", '"""\'\'')
_QUOTE = re.compile(r"\"|(?<!\w)'|'(?!\w)")
_LETTERS = re.compile(r"\W*a\W*b\W*c", re.IGNORECASE)
_OR = re.compile(r",(?:\s*or\s)?|\sor\s")


@instruction(
    "format:parentheses",
    "Nests round, square or curly brackets five levels deep, all five closed.",
    differs="The reference asks for the innermost of the five to be closed only.",
)
def parentheses(text: str) -> bool:
    # One entry an open bracket: the bracket, and how many levels are closed inside it.
    opened: list[tuple[str, int]] = []
    for mark in _BRACKETS.findall(text):
        if mark not in _CLOSES:
            opened.append((mark, 0))
        elif not opened or opened[-1][0] != _CLOSES[mark]:
            opened.clear()
        else:
            levels = opened.pop()[1] + 1
            if levels >= 5:
                return True
            _raise(opened, levels)
    return False


def _raise(opened: list[tuple[str, int]], levels: int) -> None:
    if opened:
        mark, inside = opened[-1]
        opened[-1] = (mark, max(inside, levels))


@instruction(
    "format:quotes",
    "Has quotes in quotes in quotes, three levels deep, in turn in double and single quotation marks.",
    differs="The reference takes apostrophes within words for quotation marks, does not know curly ones and passes "
    "quotes with nothing in them.",
)
def quotes(text: str) -> bool:
    opened: list[tuple[str, int]] = []
    last = 0
    for match in _QUOTE.finditer(text.translate(_STRAIGHT)):
        if not opened or opened[-1][0] != match[0]:
            opened.append((match[0], 0))
        else:
            inside = opened.pop()[1]
            levels = inside + 1 if inside or has_content(text[last : match.start()]) else 0
            if levels >= 3:
                return True
            _raise(opened, levels)
        last = match.end()
    return False


@instruction(
    "format:quote_unquote",
    "After each phrase in double quotation marks comes text outside them; a text without quotes is let pass.",
    differs="The reference takes a mark between two quotes for an explanation; here it needs a letter.",
)
def quote_unquote(text: str) -> bool:
    parts = text.translate(_STRAIGHT).split('"')
    # Parts 1, 3, … are quoted; the one behind each is its explanation. A last quote that is not closed is none.
    return all(any(map(str.isalpha, part)) for part in parts[2::2])


def _allowed(options: str) -> list[str]:
    parts = options.split("/") if "/" in options else _OR.split(options)
    return [part.strip() for part in parts if has_content(part)]


def _no_option(values: Mapping[str, Any]) -> str | None:
    if not _allowed(values["options"]):
        return f"options = {values['options']!r} has no option; give some, separated by / or commas"
    return None


@instruction(
    "format:options",
    "Is one of `options`, which are separated by `/`, `or` or commas, and nothing else.",
    {"options": word("yes/no/maybe")},
    _no_option,
    differs="The reference splits at the letters `or` also within words, and at commas only where there is no `or`. "
    "Of lettered options such as `a), b), c)` it takes no space around the answer; here it does.",
)
def options(text: str, options: str) -> bool:
    allowed = _allowed(options)
    if _LETTERS.match(options):
        return text.strip() in allowed
    return bare(folded(text)) in [bare(folded(option)) for option in allowed]


def is_emoji(character: str) -> bool:
    """Whether a character is an emoji or ends one: flags are pairs of letters, a key is closed by U+20E3."""
    return emoji.is_emoji(character) or character == "\u20e3" or "\U0001f1e6" <= character <= "\U0001f1ff"


@instruction(
    "format:emoji",
    "Every sentence has an emoji at its end, before or behind the last mark.",
    differs="Flags, keys and emojis with a variation selector count as the reference counts plain ones.",
)
def every_emoji(text: str) -> bool:
    found = [bare(sentence).rstrip("\ufe0f") for sentence in sentences(text)]
    if not found or not all(found):
        return False
    followed = [*(is_emoji(sentence[0]) for sentence in found[1:]), False]
    return all(is_emoji(sentence[-1]) or next_one for sentence, next_one in zip(found, followed, strict=True))


@instruction(
    "format:title_case",
    "Each word starts with a capital letter; articles, short conjunctions and prepositions need not, save the first.",
    differs="The reference fails every small word, `a` and `of` included, though it asks for major words only, and "
    "fails `Don't`.",
)
def title_case(text: str) -> bool:
    words = tokens(text)
    if not any(map(str.isalpha, text)):
        return False
    return not any(_is_small(word) and (place == 0 or word not in MINOR_WORDS) for place, word in enumerate(words))


def _is_small(word: str) -> bool:
    # `iPhone` is written so.
    return word[0].islower() and (len(word) == 1 or word[1:].islower() or word[1:].isupper() or not word[1:].isalpha())
