"""Instructions about single words and letters, and about the language (IFEval)."""

from __future__ import annotations

from reroll_verifiers_if.folding import folded, holds_word_of, unmasked
from reroll_verifiers_if.language import NAMES, is_in
from reroll_verifiers_if.parameters import below_zero, character, compare, relation, texts, whole, word
from reroll_verifiers_if.parameters import language as language_code
from reroll_verifiers_if.registry import instruction

_LITERAL = (
    "The reference reads a keyword as a regular expression; here it stands for itself, whatever its quotation marks "
)
_LITERAL += "and white space look like."
_DISGUISED = " What has to be rarer is counted in the disguises of `keywords:forbidden_words` too."


@instruction(
    "keywords:existence",
    "Contains every one of `keywords`, in any case, also within longer words.",
    {"keywords": texts(["river", "bridge"])},
    differs=_LITERAL,
)
def existence(text: str, keywords: tuple[str, ...]) -> bool:
    read = folded(text)
    return all(folded(keyword) in read for keyword in keywords)


@instruction(
    "keywords:frequency",
    "Contains `keyword` `relation` `frequency` times, in any case, also within longer words.",
    {"keyword": word("river"), "frequency": whole(3), "relation": relation()},
    below_zero("relation", "frequency"),
    differs=_LITERAL + _DISGUISED,
)
def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    read = unmasked if relation == "less than" else folded
    return compare(read(text).count(read(keyword)), relation, frequency)


@instruction(
    "keywords:forbidden_words",
    "Contains none of `forbidden_words` as a word, in any case.",
    {"forbidden_words": texts(["maybe", "perhaps"])},
    differs=_LITERAL + " A word is seen between underscores, with characters of no width in it, with wide letters or "
    "letters of another script that look alike, and a phrase over a line break.",
)
def forbidden_words(text: str, forbidden_words: tuple[str, ...]) -> bool:
    return not holds_word_of(text, forbidden_words)


@instruction(
    "keywords:letter_frequency",
    "Contains `letter` `let_relation` `let_frequency` times, in any case.",
    {"letter": character("q"), "let_frequency": whole(2), "let_relation": relation()},
    below_zero("let_relation", "let_frequency"),
    differs="The reference replaces a character other than a to z by a random letter; here it is counted as it is."
    + _DISGUISED,
)
def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    if let_relation == "less than":
        return unmasked(text).count(unmasked(letter)) < let_frequency
    return compare(text.lower().count(letter.lower()), let_relation, let_frequency)


@instruction(
    "language:response_language",
    "Is in the language of the code `language`, judged by its first 10,000 characters.",
    {"language": language_code("fr", NAMES)},
    differs="The reference passes a text whose language cannot be detected; here a text without letters is in none. "
    "A text in capitals only is lowered before detection, and one mostly in Chinese characters, without "
    "kana, is Chinese.",
)
def response_language(text: str, language: str) -> bool:
    return is_in(text, language)
