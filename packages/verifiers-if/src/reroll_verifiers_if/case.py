"""Instructions about capital and small letters (IFEval)."""

from __future__ import annotations

from reroll_verifiers_if.language import is_english
from reroll_verifiers_if.parameters import below_zero, compare, relation, whole
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import tokens

_LANGUAGE = (
    "The reference passes a text whose language cannot be detected. Here a text of fewer than 60 letters passes as "
    "English if they are plain ones; a longer one has to be detected as English."
)


@instruction(
    "change_case:capital_word_frequency",
    "Has `capital_relation` `capital_frequency` words in capitals only; `I` and `A` are such words.",
    {"capital_frequency": whole(4), "capital_relation": relation()},
    below_zero("capital_relation", "capital_frequency"),
    differs="The reference counts `DON'T` as two words; here it is one.",
)
def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return compare(sum(map(str.isupper, tokens(text))), capital_relation, capital_frequency)


@instruction(
    "change_case:english_capital",
    "Is in English and in capital letters only.",
    differs=_LANGUAGE + " The text is lowered before detection: the detector of the reference passes over words in "
    "capitals and then guesses from what is left.",
)
def english_capital(text: str) -> bool:
    return text.isupper() and is_english(text.lower())


@instruction("change_case:english_lowercase", "Is in English and in small letters only.", differs=_LANGUAGE)
def english_lowercase(text: str) -> bool:
    return text.islower() and is_english(text)
