"""Instructions about shares and balances (IFBench, `ratio:`)."""

from __future__ import annotations

import re
from collections import Counter

from reroll_verifiers_if.english import STOP_WORDS
from reroll_verifiers_if.once import once
from reroll_verifiers_if.parameters import any_text, percentage
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import last_mark, plain_words, sentences

_WORD = re.compile(r"\w+")
_KINDS = " A sentence is of the kind of its last mark, also under a closing quote or bracket, which the reference "
_KINDS += "takes for the end of none."


@instruction(
    "ratio:stop_words",
    "At most `percentage` % of the words are stop words.",
    {"percentage": percentage(40)},
)
def stop_words(text: str, percentage: float) -> bool:
    words = _WORD.findall(text.lower())
    return bool(words) and sum(word in STOP_WORDS for word in words) / len(words) * 100 <= percentage


@once
def sentence_kinds(text: str) -> Counter[str]:
    """Last mark → how many sentences end with it."""
    return Counter(map(last_mark, sentences(text)))


@instruction(
    "ratio:sentence_type",
    "Has two sentences ending in a full stop for each one ending in a question mark.",
    differs="The reference passes a text with neither; here there has to be a question." + _KINDS,
)
def sentence_type(text: str) -> bool:
    kinds = sentence_kinds(text)
    return kinds["?"] > 0 and kinds["."] == 2 * kinds["?"]


@instruction(
    "ratio:sentence_balance",
    "Has as many sentences ending in a full stop as in a question mark and as in an exclamation mark.",
    differs="The reference passes a text with none of them; here there has to be one of each." + _KINDS,
)
def sentence_balance(text: str) -> bool:
    kinds = sentence_kinds(text)
    return kinds["."] > 0 and kinds["."] == kinds["?"] == kinds["!"]


@instruction(
    "ratio:overlap",
    "`percentage` % of the answer's different trigrams of characters, 2 more or less, are in `reference_text`.",
    {"reference_text": any_text("The tide comes in twice a day."), "percentage": percentage(60)},
)
def overlap(text: str, reference_text: str, percentage: float) -> bool:
    given = _trigrams(text)
    if not given:
        return False
    return percentage - 2 <= len(given & _trigrams(reference_text)) / len(given) * 100 <= percentage + 2


@once
def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


@instruction(
    "ratio:sentence_words",
    "Is three sentences of the same number of characters in which no word comes twice.",
    differs="The reference does not look at the words; the instruction asks for all different ones.",
)
def sentence_words(text: str) -> bool:
    found = sentences(text)
    if len(found) != 3 or len({len(sentence) for sentence in found}) != 1:
        return False
    words = plain_words(text.lower())
    return len(words) == len(set(words))
