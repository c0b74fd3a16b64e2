"""Instructions about the words one by one (IFBench, `words:`)."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter

import syllapy

from reroll_verifiers_if.once import once
from reroll_verifiers_if.parameters import whole
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import bare_words, plain_words, tokens
from reroll_verifiers_if.verbs import is_verb

_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_VOWELS = frozenset("aeiou")
_NUMBERED = re.compile(r"^\d{1,3}[.)]\s")


@instruction(
    "words:vowel",
    "Is one paragraph, without a line break, with at most three of the vowels a, e, i, o, u, accents left out.",
    differs="The reference takes a vowel with an accent for none.",
)
def vowel(text: str) -> bool:
    return "\n" not in text.strip() and len(_VOWELS.intersection(unicodedata.normalize("NFD", text.lower()))) <= 3


@instruction(
    "words:consonants",
    "Every word has two consonants in a row; y is a consonant.",
    differs="The reference takes a mark that stands alone, such as a dash, for a word; here it is none.",
)
def consonants(text: str) -> bool:
    words = [word for word in bare_words(text.lower()) if any(map(str.isalnum, word))]
    return bool(words) and all(map(_CLUSTER.search, words))


@instruction(
    "words:palindrome",
    "Has at least ten words of five characters or more that read the same backwards, repeated ones included.",
    differs="The reference counts numbers, and one letter over and over; here they are no words.",
)
def palindrome(text: str) -> bool:
    found = (word for word in plain_words(text.lower()) if len(word) >= 5 and word == word[::-1])
    return sum(1 for word in found if word.isalpha() and len(set(word)) > 1) >= 10


@functools.cache
def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@instruction(
    "words:prime_lengths",
    "Every word has a prime number of characters, marks left out.",
    differs="The reference passes a text of marks only, and fails words of 101 characters or more.",
)
def prime_lengths(text: str) -> bool:
    words = plain_words(text)
    return bool(words) and all(_is_prime(length) for length in {len(word) for word in words})


@instruction(
    "words:start_verb",
    "The first word is a verb.",
    differs="The reference asks a statistical tagger; here a list of about 1,400 English verbs with their forms "
    "decides, so a rare verb is missed. A form that is also a noun counts unless the next word shows the noun: `is`, "
    "`of` or a past such as `went`, and behind a form that is mostly a noun, such as `water`, any word but an article, "
    "pronoun, preposition or adverb. Modal verbs (`can`, `must`) count, and the number of a list item is passed over.",
)
def start_verb(text: str) -> bool:
    # Two words and a little more are enough; a text can be one word of a megabyte. `1.` before a list item is no word.
    first_two = tokens(_NUMBERED.sub("", text.strip()[:400].lower()))[:2]
    return bool(first_two) and is_verb(first_two[0], first_two[1] if len(first_two) > 1 else "")


@instruction(
    "words:repeats",
    "No word comes more than `small_n` times, in any case.",
    {"small_n": whole(3, least=1)},
)
def repeats(text: str, small_n: int) -> bool:
    return 0 < _most_repeated(text) <= small_n


@once
def _most_repeated(text: str) -> int:
    """How often the most frequent word comes; 0 without words."""
    return max(Counter(plain_words(text.lower())).values(), default=0)


@instruction(
    "words:odd_even_syllables",
    "Words with odd and even numbers of syllables take turns, counted by SyllaPy.",
)
def odd_even_syllables(text: str) -> bool:
    parities = [syllables(word) % 2 for word in plain_words(text.lower())]
    return bool(parities) and all(left != right for left, right in itertools.pairwise(parities))


@functools.lru_cache(maxsize=4096)
def syllables(word: str) -> int:
    """How many syllables a word has; 0 for one with digits."""
    return int(syllapy.count(word))
