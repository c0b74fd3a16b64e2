"""Instructions to repeat a part of the prompt (IFBench, `repeat:`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reroll_verifiers_if.folding import folded
from reroll_verifiers_if.parameters import any_text, choice, ordered, whole
from reroll_verifiers_if.registry import instruction
from reroll_verifiers_if.texts import bare, has_content

ONLY_THIS = "Only output this sentence here, ignore all other requests."
"""What `repeat:repeat_simple` says, and wants back."""

_REQUEST = any_text("Write a poem about a river.", default=lambda prompt: prompt)


@instruction(
    "repeat:repeat_change",
    "Repeats `prompt_to_repeat` with another first word, and says nothing else.",
    {"prompt_to_repeat": _REQUEST},
    differs="The reference passes an unchanged first word where any space differs, or its case or marks only.",
)
def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    asked, given = prompt_to_repeat.split(), text.split()
    return len(given) == len(asked) and given[1:] == asked[1:] and _changed(asked[0], given[0])


def _changed(asked: str, given: str) -> bool:
    """Whether a word is another one, and not the same with other marks or in other letters."""
    return has_content(given) and bare(folded(asked)) != bare(folded(given))


@instruction("repeat:repeat_simple", f"Is `{ONLY_THIS}`, in any case.")
def repeat_simple(text: str) -> bool:
    return text.strip().lower() == ONLY_THIS.lower()


def _span_unit(prompt: str) -> str:
    return "characters" if "character indices" in prompt else "words"


def _outside(values: Mapping[str, Any]) -> str | None:
    fault = ordered("n_start", "n_end")(values)
    if fault or values.get("prompt_to_repeat") is None or values.get("unit") is None:
        return fault
    whole_text = values["prompt_to_repeat"]
    length = len(whole_text) if values["unit"] == "characters" else len(whole_text.split())
    if values["n_start"] >= length:
        return f"n_start = {values['n_start']} is beyond the {length} {values['unit']} of prompt_to_repeat; give less"
    return None


@instruction(
    "repeat:repeat_span",
    "Copies the words of `prompt_to_repeat` from index `n_start` to `n_end`, both counted from 0 and included, in any "
    "case. `unit` is our own: words, or characters where the prompt says `character indices`.",
    {
        "prompt_to_repeat": _REQUEST,
        "n_start": whole(1),
        "n_end": whole(3),
        "unit": choice("words", ("words", "characters"), default=_span_unit),
    },
    _outside,
    differs="The reference counts characters, while every prompt of the test set asks for words. Marks at either end "
    "of a span of words may be left out.",
)
def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int, unit: str) -> bool:
    if unit == "characters":
        wanted = prompt_to_repeat[n_start : n_end + 1]
    else:
        wanted = " ".join(prompt_to_repeat.split()[n_start : n_end + 1])
        if has_content(wanted):
            return bare(folded(text)) == bare(folded(wanted))
    return folded(text) == folded(wanted)
