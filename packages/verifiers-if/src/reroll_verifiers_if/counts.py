"""Instructions that count words of a kind (IFBench, `count:`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reroll_verifiers_if.english import CONJUNCTIONS, NAMES, PRONOUNS
from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.once import once
from reroll_verifiers_if.parameters import ordered, whole, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import bare_words, count_words, tokens

_NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
_NUMBER = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(?!\d)"  # dates
    r"|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?"  # thousands
    r"|\d+(?:[.:/]\d+)*+"  # decimals, versions, times of day and fractions
)
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_PART = re.compile(r"\w+(?:-\w+)*")
_TIMES = {"keyword1": 1, "keyword2": 2, "keyword3": 3, "keyword4": 5, "keyword5": 7}


@instruction(
    "count:word_count_range",
    "Has between `min_words` and `max_words` words.",
    {"min_words": whole(50), "max_words": whole(60)},
    ordered("min_words", "max_words"),
)
def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= count_words(text) <= max_words


@instruction(
    "count:unique_word_count",
    "Uses at least `N` different words.",
    {"N": whole(40)},
    differs="The reference counts a mark that stands alone as a word; here it is none. A dash parts two words.",
)
def unique_word_count(text: str, N: int) -> bool:
    return len(set(bare_words(text.lower()))) >= N


@instruction(
    "count:conjunctions",
    "Uses at least `small_n` different ones of the coordinating conjunctions and, but, for, nor, or, so, yet.",
    {"small_n": whole(3, most=len(CONJUNCTIONS))},
    differs="The reference takes `and`, `And` and `and,` for three conjunctions; here they are one. It does not see "
    "those beside a dash or a slash.",
)
def conjunctions(text: str, small_n: int) -> bool:
    return len(CONJUNCTIONS.intersection(tokens(text.lower()))) >= small_n


@instruction(
    "count:person_names",
    "Mentions at least `N` different names of the fifty that the prompt lists.",
    {"N": whole(5, most=len(NAMES))},
)
def person_names(text: str, N: int) -> bool:
    return len(set(_NAME.findall(text))) >= N


@instruction(
    "count:numbers",
    "Contains exactly `N` numbers written in digits; `1,000`, `3.5`, `1/2`, `10:30` and `2024-05-06` are one each, the "
    "range `5-10` is two.",
    {"N": whole(3)},
    differs="The reference drops all marks before it counts, so that `5-10`, `(1)(2)` and `3,4,5` are one number each.",
)
def numbers(text: str, N: int) -> bool:
    return _count_numbers(text) == N


@once
def _count_numbers(text: str) -> int:
    return sum(1 for _ in _NUMBER.finditer(text))


@instruction(
    "count:punctuation",
    "Uses every one of . , ! ? ; : and besides an interrobang, `?!`, `!?` or `‽`.",
)
def punctuation(text: str) -> bool:
    for interrobang in ("?!", "!?", "‽"):
        if interrobang in text:
            rest = text.replace(interrobang, "", 1)
            return all(mark in rest for mark in ".,!?;:")
    return False


@instruction(
    "count:pronouns",
    "Uses at least `N` pronouns, repeated ones included.",
    {"N": whole(10)},
)
def pronouns(text: str, N: int) -> bool:
    return _count_pronouns(text) >= N


@once
def _count_pronouns(text: str) -> int:
    return sum(1 for part in _PART.findall(text.lower()) if part in PRONOUNS)


@instruction(
    "count:words_japanese",
    "Every `N`th word is in Japanese, at least one; numbers in digits are let pass.",
    {"N": whole(5, least=1)},
    differs="The reference passes an answer of fewer than `N` words, and counts a mark that stands alone as a word.",
)
def words_japanese(text: str, N: int) -> bool:
    every = bare_words(text)[N - 1 :: N]
    return bool(every) and all(_JAPANESE.search(word) for word in every if not word.isdigit())


def _twice(values: Mapping[str, Any]) -> str | None:
    names: dict[str, str] = {}
    for name in _TIMES:
        keyword = folded(values[name])
        if keyword in names:
            return f"{names[keyword]} and {name} are both {keyword!r}, with different numbers of times; change one"
        names[keyword] = name
    return None


@instruction(
    "count:keywords_multiple",
    "Contains `keyword1` once, `keyword2` twice, `keyword3` three times, `keyword4` five times and `keyword5` seven "
    "times, in any case, also within longer words.",
    {name: word(example) for name, example in zip(_TIMES, ("tide", "moss", "lamp", "fern", "oak"), strict=True)},
    _twice,
)
def keywords_multiple(text: str, **keywords: str) -> bool:
    read = folded(text)
    return all(read.count(folded(keywords[name])) == times for name, times in _TIMES.items())
