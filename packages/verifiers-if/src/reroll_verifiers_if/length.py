"""Instructions about numbers of words, sentences and paragraphs (IFEval)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.parameters import below_zero, compare, relation, whole, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import count_words, has_content, sentences
from reroll_verifiers_if.texts import tokens as words_of

_BOLD_ITALIC = re.compile(r"(?<!\S)\*{3}(?![\s*])([^*\n]*)(?<!\s)\*{3}(?![\w*])")


@instruction(
    "length_constraints:number_words",
    "Has `relation` `num_words` words.",
    {"num_words": whole(200), "relation": relation()},
    below_zero("relation", "num_words"),
)
def number_words(text: str, num_words: int, relation: str) -> bool:
    return compare(count_words(text), relation, num_words)


@instruction(
    "length_constraints:number_sentences",
    "Has `relation` `num_sentences` sentences.",
    {"num_sentences": whole(5), "relation": relation()},
    below_zero("relation", "num_sentences"),
)
def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compare(len(sentences(text)), relation, num_sentences)


@instruction(
    "length_constraints:number_paragraphs",
    "Has `num_paragraphs` paragraphs, separated by the divider `***`.",
    {"num_paragraphs": whole(3, least=1)},
    differs="The reference counts `***bold italics***` as two dividers, and marks alone as a paragraph.",
)
def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = [part if has_content(part) else "" for part in _BOLD_ITALIC.sub(r"*\1*", text).split("***")]
    # A divider before the first paragraph or after the last makes no paragraph; an empty one between two is a fault.
    inner = parts[1:-1]
    return all(inner) and len(inner) + sum(1 for part in _ends(parts) if part) == num_paragraphs


def _ends(parts: list[str]) -> list[str]:
    return parts if len(parts) < 2 else [parts[0], parts[-1]]


def _outside(values: Mapping[str, Any]) -> str | None:
    nth, count = values["nth_paragraph"], values["num_paragraphs"]
    if nth > count:
        return f"nth_paragraph = {nth} is beyond num_paragraphs = {count}; give at most {count}"
    return None


@instruction(
    "length_constraints:nth_paragraph_first_word",
    "Has `num_paragraphs` paragraphs, separated by blank lines, and paragraph `nth_paragraph` starts with "
    "`first_word`.",
    {"num_paragraphs": whole(3, least=1), "nth_paragraph": whole(2, least=1), "first_word": word("however")},
    _outside,
    differs="The reference takes the paragraph by its place among all parts, empty ones included; here only paragraphs "
    "with text count, a line of spaces is blank, and any mark or dash ends the first word, not only `.,?!` and "
    "quotes. A contraction is one word.",
)
def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = [part for part in _paragraphs(text) if has_content(part)]
    if len(paragraphs) != num_paragraphs:
        return False
    wanted = words_of(folded(first_word))
    # A little more than the words asked for is enough; a paragraph can be a megabyte.
    start = paragraphs[nth_paragraph - 1].lstrip()[: 2 * len(first_word) + 100]
    return wanted != () and words_of(folded(start))[: len(wanted)] == wanted


def _paragraphs(text: str) -> list[str]:
    """The runs of lines that are not blank."""
    runs = itertools.groupby(text.split("\n"), key=lambda line: bool(line.strip()))
    return ["\n".join(lines) for written, lines in runs if written]
