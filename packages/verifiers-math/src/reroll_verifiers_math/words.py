"""Answers in words, and the numbers and sets that words name."""

from __future__ import annotations

from reroll_verifiers_math.nodes import Node, Number, Symbol, Words
from reroll_verifiers_math.text import folded

_ONES_IN_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ONES = {word: value for value, word in enumerate(_ONES_IN_WORDS.split())}
_TENS_IN_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * value for value, word in enumerate(_TENS_IN_WORDS.split(), 2)}
_NAMED = {
    "emptyset": frozenset(("nosolution", "nosolutions", "norealsolution", "norealsolutions", "none", "emptyset")),
    "mathbbR": frozenset(("allrealnumbers", "allreals", "realnumbers", "allrealx")),
}
"""Folded words that stand for a set."""
_TRUTH = {"true": "true", "yes": "true", "correct": "true", "false": "false", "no": "false", "incorrect": "false"}


def equal_words(gold: Node, answer: Node) -> bool:
    if isinstance(gold, Words) != isinstance(answer, Words):
        words, other = (gold, answer) if isinstance(gold, Words) else (answer, gold)
        assert isinstance(words, Words)
        text = folded(words.text)
        return (isinstance(other, Number) and spelled(text) == other.value) or (
            isinstance(other, Symbol) and text in _NAMED.get(other.name, ())
        )
    if not (isinstance(gold, Words) and isinstance(answer, Words)):
        return False
    first, second = folded(gold.text), folded(answer.text)
    if first == second or (first in _TRUTH and _TRUTH.get(first) == _TRUTH.get(second)):
        return True
    return any(first in words and second in words for words in _NAMED.values())


def spelled(text: str) -> int | None:
    """The number below a hundred that folded English words name; None for others."""
    if text in _ONES or text in _TENS:
        return _ONES.get(text, _TENS.get(text))
    for word, tens in _TENS.items():
        rest = text.removeprefix(word).lstrip("-")
        if text.startswith(word) and 0 < _ONES.get(rest, 0) < 10:
            return tens + _ONES[rest]
    return None
