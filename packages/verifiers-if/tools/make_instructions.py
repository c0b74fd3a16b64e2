"""Writes INSTRUCTIONS.md from the registry: `python packages/verifiers-if/tools/make_instructions.py [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reroll_verifiers_if.registry import Instruction, instructions

PAGE = Path(__file__).parents[1] / "INSTRUCTIONS.md"

INTRODUCTION = """# Instructions

<!-- Written by tools/make_instructions.py; change the declarations in src/reroll_verifiers_if instead. -->

What each id of IFEval (Zhou et al., 2023) and IFBench (Allen Institute for AI, 2025) asks of an answer. A parameter
with a default in brackets may be left out; every other one is required.
"""

DIFFERENCES = """
## Where verdicts differ from the reference implementations

The reference implementations are `instruction_following_eval` of google-research for IFEval and `allenai/IFBench`.
Where one of them contradicts its own instruction, the instruction's text decides here.

For every instruction:

- Blank lines before the answer and space behind it are not judged.
- An answer without a letter, a digit or an emoji follows nothing, save `count:punctuation`, `format:parentheses` and
  `detectable_format:json_format`; characters that show nothing, such as U+200B, are no answer.
- A missing parameter is an error; the references draw one by chance.
- Typographic marks such as “ ” and … are punctuation like those of ASCII, and a dash parts two words.
- Sentences are split by rules, not by NLTK's trained splitter: the number of a list item (`1.`) is no sentence, several
  marks in a row (`?!`) end one, and so do the full stops of other scripts (。 ।). Marks alone are none.
- Words are split by rules, not by NLTK's tokenizer: a contraction (`don't`) is one word, unless pronouns are counted.
- `length_constraints:number_words`, `count:word_count_range` and `ratio:stop_words` count as the references do, because
  published numbers do: runs of letters and digits, so that `don't` and `well-known` are two words and `3.14` is two.
- A text that no parser reads does not follow; nothing raises.

Of single instructions:
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "\n| id | the answer | parameters |\n|---|---|---|\n"]
    parts += [f"| `{item.id}` | {cell(item.wish)} | {parameters(item)} |\n" for item in ordered()]
    parts.append(DIFFERENCES + "\n")
    parts += [f"- `{item.id}`: {item.differs}\n" for item in ordered() if item.differs]
    return "".join(parts)


def ordered() -> list[Instruction]:
    """Every instruction by family, IFEval first."""
    return list(instructions().values())


def parameters(item: Instruction) -> str:
    """Name, kind and example of each parameter."""
    found = []
    for name, parameter in item.parameters.items():
        optional = " (from the prompt)" if parameter.default else ""
        found.append(f"`{name}`: {parameter.kind}, `{json.dumps(parameter.example, ensure_ascii=False)}`{optional}")
    return cell("<br>".join(found))


def cell(text: str) -> str:
    """A text as it stands in a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: run {Path(__file__).name}")
    PAGE.write_text(page(), "utf-8")
