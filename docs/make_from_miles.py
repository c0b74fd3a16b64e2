"""Writes docs/from-miles.md from the table of dials: `python docs/make_from_miles.py [--check]`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from reroll.dials.table import Dial, dials

PAGE = Path(__file__).with_name("from-miles.md")

INTRODUCTION = """# From MILES

<!-- Written by docs/make_from_miles.py; change packages/core/src/reroll/dials/table.toml instead. -->

`reroll plan --from-miles FILE` prints a file of MILES as a run file: TOML with `[miles]` and `[core]`, or the shell
script that starts MILES, with its flags in arrays such as `OPTIMIZER_ARGS=( … )`. Comments say where a meaning changes.
What is refused (without it the run is another one), what is not known, what must still be given and what is not needed
here stands on stderr and at the end of the file; what `plan` would refuse in the result, with the remedy, on stderr and
at its head. The exit code is 0 where `plan` takes the file and nothing was refused or unknown, 1 where the file was
printed all the same, and 2 for what cannot be read as a file of MILES. `--set` is in MILES's names, `--json` gives
everything as data:

    reroll plan --from-miles train.sh > run.toml
    reroll plan run.toml

Of a script nothing is run: variables that it sets itself are filled in, one that only the environment knows is a fault
with its line, and conditions are read as if they held.

Names of MILES in a run file, or in `--set`, are answered as below. A name without a section is of `[miles]`; `[core]`
and the other sections are those of a MILES adapter with an OLMo-core trainer, whose files have them beside `[miles]`.
An option of a component stands under the key that selects the component: `serving.transport.update_weight_buffer_size`
is written `transport = { name = "distributed", update_weight_buffer_size = … }`. Options of SGLang that have no line
here, `sglang_*`, are keys of `[sglang]`.
"""


def answer(line: Dial) -> str:
    """The middle column."""
    if line.answer == "key":
        return ", ".join(f"`{key}`" for key in line.keys)
    return {"refused": "refused", "not_applicable": "not applicable"}[line.answer]


def row(line: Dial) -> str:
    name = line.control if line.name.startswith("miles.") else line.name
    text = line.text + (f" (left out: {line.absent})" if line.absent else "")
    return f"| `{name}` | {answer(line)} | {text.replace('|', chr(92) + '|').strip()} |"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for group, lines in groupby(dials().values(), key=lambda line: line.group):
        rows = "\n".join(map(row, lines))
        parts.append(f"## {group}\n\n| MILES | here | |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: hatch run docs:pages")
    PAGE.write_text(page(), "utf-8")
