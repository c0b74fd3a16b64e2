"""Instructions about how an answer starts, ends and is put together (IFEval)."""

from __future__ import annotations

import re

from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.parameters import any_text, word
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import has_content, plain_words

_COMMA = re.compile(r"[,\uff0c\u060c\u3001\ufe50]|\u201a(?=\s|$)")


@instruction(
    "startend:end_checker",
    "Ends with `end_phrase`, in any case, with or without closing quotation marks.",
    {"end_phrase": word("Is there anything else?")},
    differs="The reference knows straight double quotation marks only, strips those of the phrase itself, and passes a "
    "phrase that starts within a word.",
)
def end_checker(text: str, end_phrase: str) -> bool:
    read, wanted = folded(text), folded(end_phrase)
    for end in (read, read.rstrip("\"' ")):
        if end.endswith(wanted):
            before = end[: len(end) - len(wanted)][-1:]
            return not (before.isalnum() and wanted[0].isalnum())
    return False


@instruction(
    "startend:quotation",
    "Is wrapped in double quotation marks.",
    differs='The reference takes straight quotation marks only; here `“…”` counts too. It passes `""` with nothing '
    "between.",
)
def quotation(text: str) -> bool:
    whole = text.strip()
    return whole[0] in '"“' and whole[-1] in '"”' and has_content(whole)


@instruction(
    "punctuation:no_comma",
    "Contains no comma.",
    differs="The reference knows the comma of ASCII only; here those of Chinese, Japanese and Arabic are commas too, "
    "and the low quotation mark `‚` before a space, which looks like one.",
)
def no_comma(text: str) -> bool:
    return _COMMA.search(text) is None


@instruction(
    "combination:two_responses",
    "Gives two different responses, separated by six asterisks.",
    differs="The reference takes responses that differ in case, space or marks only for different ones.",
)
def two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    # A separator before the first response or after the last is let pass; two in a row are not.
    if not all(parts[1:-1]) or len(given) != 2 or not all(map(has_content, given)):
        return False
    return plain_words(folded(given[0])) != plain_words(folded(given[1]))


@instruction(
    "combination:repeat_prompt",
    "Starts with `prompt_to_repeat`, word for word, in any case; space may differ.",
    {"prompt_to_repeat": any_text("Write a poem about a river.", default=lambda prompt: prompt)},
)
def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return folded(text).startswith(folded(prompt_to_repeat))
