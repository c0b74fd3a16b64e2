"""Words, sentences and lines of a text.

Every function reads its text a fixed number of times: no pattern here looks back over what it has passed.
"""

from __future__ import annotations

import re
import string
import unicodedata
from itertools import groupby

from reroll_verifiers_if.english import ABBREVIATIONS, STOP_WORDS, TITLES
from reroll_verifiers_if.once import once

PUNCTUATION = string.punctuation + "“”„‟‘’‚‛«»‹›…·•‣¡¿、。，！？；：「」『』（）【】《》।۔؟،"
"""Marks that are no part of a word: those of ASCII, typographic ones and those of other scripts."""

EDGES = PUNCTUATION + string.whitespace
"""What is stripped off a word."""

_DASHES = "—–―"
_PARTED = str.maketrans(dict.fromkeys(_DASHES, " ") | {"’": "'"})
_DROP = str.maketrans(dict.fromkeys(PUNCTUATION, "") | dict.fromkeys(_DASHES, " "))

BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Characters that are letters or marks by their class and show nothing."""

_EMOJI = "\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff\ufe0f\u200d\u20e3"
_CLOSERS = "\"'”’»)\\]}*_" + _EMOJI
_QUOTES = frozenset("\"'”’»")
_END = re.compile(rf"(?<![.!?…])([.!?…]++)([{_CLOSERS}]*+)(?=\s|$)|[。！？।۔؟]++[{_CLOSERS}」』）]*+")
_STRIP_CLOSERS = re.compile(rf"[{_CLOSERS}」』）\s]")
_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*")
_WORD = re.compile(r"\w+")
_CONTENT = re.compile(f"(?![{BLANKS}])[^\\W_]|[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
_LETTERED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_NUMBERED = re.compile(r"(?:^|\n)[ \t>#*_-]*(?:\d{1,3}|[A-Za-z])$")


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: it has space, controls, characters of no width and lone accents only."""
    return all(character in BLANKS or unicodedata.category(character)[0] in "ZCM" for character in text)


def has_content(text: str) -> bool:
    """Whether a text has a letter, a digit or an emoji; marks alone say nothing."""
    return _CONTENT.search(text) is not None


@once
def plain_words(text: str) -> tuple[str, ...]:
    """The words between spaces and dashes, without any punctuation: `don't stop` gives `dont`, `stop`."""
    return tuple(text.translate(_DROP).split())


@once
def bare_words(text: str) -> tuple[str, ...]:
    """The words between spaces and dashes, without the marks around them; an apostrophe within is a straight one."""
    return tuple(filter(None, map(bare, text.translate(_PARTED).split())))


@once
def tokens(text: str) -> tuple[str, ...]:
    """The words as a reader counts them: `don't` and `well-known` are one each, marks are none."""
    found = _TOKEN.findall(text)
    return tuple(filter(None, (token.strip("_") for token in found)) if "_" in text else found)


@once
def count_words(text: str) -> int:
    """How many words IFEval counts: runs of letters, digits and underscores, so that `don't` is two."""
    return sum(1 for _ in _WORD.finditer(text))


def whole_word(text: str, wanted: str) -> bool:
    """Whether `wanted` stands in the text as a word of its own, in any case."""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text, re.IGNORECASE) is not None


def bare(word: str) -> str:
    """A word without the marks around it."""
    return word.strip(EDGES)


def lines(text: str) -> list[str]:
    """The lines that are not blank, each as it stands."""
    return [line for line in text.split("\n") if line.strip()]


@once
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, without the space around them.

    A sentence ends at `.`, `!`, `?` or `…` before a space, with the quotes, brackets, asterisks and emojis that close
    it, and at the full stops of other scripts. A full stop ends none after a title (`Dr.`), an initial, the number of
    a list item, or, before a small letter, after another abbreviation or in an ellipsis. A quotation that goes on in a
    small letter (`"Stop!" she said`) ends none. Line breaks end none, so that a heading belongs to what follows. Marks
    without a letter, a digit or an emoji are no sentence: they belong to the one before, or else to the one behind.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        first, end = match.span()
        if _goes_on(text[max(start, first - 20) : first], match[1], match[2], text[end : end + 20].lstrip()):
            continue
        start = _add(spans, text, start, end)
    _add(spans, text, start, len(text))
    return tuple(text[first:end].strip() for first, end in spans)


def _add(spans: list[tuple[int, int]], text: str, start: int, end: int) -> int:
    """Adds the sentence from `start` to `end`; gives back where the next one starts."""
    if _CONTENT.search(text, start, end):
        spans.append((start, end))
    elif spans:
        spans[-1] = (spans[-1][0], end)
    else:
        return start
    return end


def _goes_on(before: str, marks: str | None, closers: str | None, following: str) -> bool:
    """Whether a sentence that ends in `before` goes on; without `marks` it ends with one of another script."""
    if not marks or not following:
        return False
    small = following[0].islower()
    if closers:
        return small and not _QUOTES.isdisjoint(closers)
    if marks != ".":
        return small and marks.startswith(("...", "…"))
    if not before or before[-1].isspace():
        return False
    last = before.rsplit(None, 1)[-1].lstrip("([\"'“‘*_")
    if len(last) < 4 and (last.isdigit() or len(last) == 1) and _NUMBERED.search(before):
        return True
    if len(last) == 1 and last.isupper():
        # `J. Doe` goes on, `Plan B. Then` does not.
        begun = _TOKEN.match(following)
        return last != "I" and not (begun and begun[0].lower() in STOP_WORDS)
    lowered = last.lower()
    return lowered in TITLES or (small and (lowered in ABBREVIATIONS or _LETTERED.fullmatch(last) is not None))


def last_mark(sentence: str) -> str:
    """The mark that ends a sentence, under closing quotes, brackets and emojis; empty for an empty sentence."""
    position = len(sentence)
    while position and _STRIP_CLOSERS.match(sentence, position - 1):
        position -= 1
    return sentence[position - 1 : position]


def ascii_only(text: str) -> str:
    """Letters without their accents; characters that ASCII has no letter for are left out."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def longest_run(letters: list[str]) -> int:
    """How many equal neighbours there are at most."""
    return max((len(list(group)) for _, group in groupby(letters)), default=0)
