"""Instructions about the sentences one by one (IFBench, `sentence:`)."""

from __future__ import annotations

from itertools import pairwise

from reroll_verifiers_if.once import once
from reroll_verifiers_if.parameters import whole, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import PUNCTUATION, longest_run, plain_words, sentences, whole_word


@instruction(
    "sentence:alliteration_increment",
    "Each sentence has a longer run of words with one first letter than the sentence before.",
    differs="The reference adds up all runs of a sentence; here the longest one counts.",
)
def alliteration_increment(text: str) -> bool:
    runs = list(map(alliteration, sentences(text)))
    return bool(runs) and all(left < right for left, right in pairwise(runs))


def alliteration(sentence: str) -> int:
    """How long the longest run of words with one first letter is; 0 where no two neighbours share it."""
    starts = [word.lstrip(PUNCTUATION)[:1] for word in sentence.lower().split()]
    run = longest_run([letter for letter in starts if letter])
    return run if run > 1 else 0


@instruction(
    "sentence:keyword",
    "Sentence `N`, counted from 1, contains `word` as a word, in any case.",
    {"word": word("harbor"), "N": whole(2, least=1)},
)
def keyword(text: str, word: str, N: int) -> bool:
    found = sentences(text)
    return len(found) >= N and whole_word(found[N - 1], word)


@instruction(
    "sentence:increment",
    "Each sentence has exactly `small_n` words more than the sentence before.",
    {"small_n": whole(2)},
)
def increment(text: str, small_n: int) -> bool:
    lengths = _lengths(text)
    return bool(lengths) and all(right == left + small_n for left, right in pairwise(lengths))


@once
def _lengths(text: str) -> tuple[int, ...]:
    """How many words each sentence has."""
    return tuple(len(plain_words(sentence)) for sentence in sentences(text))
