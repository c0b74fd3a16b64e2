"""The answers that `table.toml` holds, one a control of MILES."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

TABLE = Path(__file__).with_name("table.toml")
NATIVE = "miles"
"""The section of MILES's own options; `core`, and sections with names of ours, are of an adapter with an OLMo-core
trainer."""
SERVER = "sglang_"
"""Begins an option that MILES hands on to SGLang, of which only some have a line of their own."""

Answer = Literal["key", "refused", "not_applicable"]


@dataclass(frozen=True)
class Dial:
    """What becomes of one control.

    Attributes:
        name: with its section, `miles.lr`.
        group: its subject.
        keys: ours, where the answer is `key`.
        text: for a key what it means or how it differs, else why there is none and what to use.
        rule: how a value is translated; empty where it is kept as it is.
        absent: what holds here if the control is left out, where MILES has another default; else empty.
    """

    name: str
    group: str
    answer: Answer
    keys: tuple[str, ...]
    text: str
    rule: str = ""
    absent: str = ""

    @property
    def control(self) -> str:
        """The name without its section."""
        return self.name.partition(".")[2]

    @property
    def is_ours(self) -> bool:
        """Whether our key has this very name."""
        return self.keys == (self.name,)

    def told(self) -> tuple[str, str]:
        """The answer as message and remedy of a fault."""
        if self.answer == "key":
            return "use " + " and ".join(f"`{key}`" for key in self.keys), self.text
        return {"refused": "is refused", "not_applicable": "is not applicable here"}[self.answer], self.text


@cache
def dials() -> Mapping[str, Dial]:
    """Every line, by the control's name with its section."""
    read = tomllib.loads(TABLE.read_text("utf-8"))
    lines = [_dial(name, group["title"], line) for group in read["group"] for name, line in group["controls"].items()]
    found = {line.name: line for line in lines}
    assert len(found) == len(lines), "a control has two lines"
    return found


def _dial(name: str, group: str, line: Mapping[str, Any]) -> Dial:
    keys = (line["key"],) if "key" in line else tuple(line.get("keys", ()))
    answer: Answer = "refused" if "refused" in line else "not_applicable" if "not_applicable" in line else "key"
    assert bool(keys) + ("refused" in line) + ("not_applicable" in line) == 1, f"{name} needs one answer"
    assert set(line) <= {"key", "keys", "refused", "not_applicable", "note", "rule", "absent"}, f"{name}: unknown field"
    text = line.get("note", "") if answer == "key" else line[answer]
    return Dial(name, group, answer, keys, text, line.get("rule", ""), line.get("absent", ""))


def foreign_sections() -> frozenset[str]:
    """Sections that only a file of MILES has; the others bear names of ours."""
    return frozenset({NATIVE, "core"})


def find(control: str, section: str | None = None) -> Dial | None:
    """The line of a control, dashes or underscores: under the section that it was given in, or else under any, as who
    writes into a section of ours thinks of none."""
    control = control.replace("-", "_")
    for place in (section, NATIVE, "core"):
        if place is not None and (line := dials().get(f"{place}.{control}")):
            return line
    if section in (None, NATIVE) or section not in foreign_sections():
        return _of_the_server(control)
    return None


def nearest(control: str, section: str) -> str:
    """A remedy for a control that has no line."""
    control = control.replace("-", "_")
    names = {line.control for line in dials().values() if line.name.startswith(f"{section}.")}
    close = difflib.get_close_matches(control, names, 1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


def _of_the_server(control: str) -> Dial | None:
    """An option without a line; whether SGLang has it, `[sglang]` knows."""
    option = control.removeprefix(SERVER)
    if not control.startswith(SERVER) or not option:
        return None
    return Dial(f"{NATIVE}.{control}", "Servers", "key", (f"sglang.{option}",), "", "sglang")
