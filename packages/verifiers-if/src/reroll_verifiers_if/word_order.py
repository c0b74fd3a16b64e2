"""Instructions about the order of words (IFBench, `words:`)."""

from __future__ import annotations

import itertools
import unicodedata

from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.parameters import whole, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import bare_words, lines, plain_words, sentences, tokens

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@instruction(
    "words:alphabet",
    "Each word starts with the next letter of the alphabet, from any one on, and after Z comes A.",
)
def alphabet(text: str) -> bool:
    # Without its accent: `Élan` starts with E.
    letters = [unicodedata.normalize("NFD", word[0])[0] for word in plain_words(text.lower())]
    if not letters or letters[0] not in _ALPHABET:
        return False
    start = _ALPHABET.index(letters[0])
    return all(letter == _ALPHABET[(start + place) % 26] for place, letter in enumerate(letters))


@instruction("words:no_consecutive", "No two words in a row start with the same letter.")
def no_consecutive(text: str) -> bool:
    words = plain_words(text.lower())
    return bool(words) and all(left[0] != right[0] for left, right in itertools.pairwise(words))


@instruction(
    "words:last_first",
    "The last word of each sentence is the first of the next, in any case.",
)
def last_first(text: str) -> bool:
    ends = list(map(_first_and_last, sentences(text.lower())))
    return bool(ends) and all(left[1] == right[0] != "" for left, right in itertools.pairwise(ends))


def _first_and_last(sentence: str) -> tuple[str, str]:
    """The first word and the last, without marks; two empty texts for a sentence of marks only."""
    words = bare_words(sentence)
    return (words[0], words[-1]) if words else ("", "")


@instruction(
    "words:paragraph_last_first",
    "Each line that is not blank ends with the word it starts with, in any case.",
    differs="The reference compares the first word with the marks behind it, so that `Rain, oh rain` fails.",
)
def paragraph_last_first(text: str) -> bool:
    ends = list(map(_first_and_last, lines(text.lower())))
    return any(first for first, _ in ends) and all(first == last for first, last in ends)


@instruction(
    "words:keywords_specific_position",
    "Word `m` of sentence `n` is `keyword`, both counted from 1, in any case.",
    {"keyword": word("harbor"), "n": whole(2, least=1), "m": whole(4, least=1)},
    differs="The reference counts `don't` as two words; here it is one.",
)
def keywords_specific_position(text: str, keyword: str, n: int, m: int) -> bool:
    found = sentences(text)
    words = tokens(found[n - 1]) if len(found) >= n else ()
    return len(words) >= m and folded(words[m - 1]) == folded(keyword)


@instruction(
    "words:words_position",
    "The second word and the last but one are `keyword`, in any case.",
    {"keyword": word("harbor")},
    differs="The reference counts marks as words, save one at the end; here they are none.",
)
def words_position(text: str, keyword: str) -> bool:
    words = tokens(text)
    return len(words) > 2 and folded(words[1]) == folded(words[-2]) == folded(keyword)
