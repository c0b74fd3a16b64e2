"""Faults of a run file that is written in MILES's names: each name is told what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reroll.api import Problem
from reroll.dials.table import dials, find, foreign_sections, nearest

TRANSLATE = "`reroll plan --from-miles FILE` translates a whole file"


def is_foreign(section: str) -> bool:
    return section in foreign_sections()


def section_problems(section: str, value: Any) -> Iterator[Problem]:
    """One fault a key of a foreign section."""
    if not isinstance(value, Mapping) or not value:
        yield Problem(section, "is a section of MILES", TRANSLATE)
        return
    for number, control in enumerate(value):
        key = f"{section}.{control}"
        line = find(control, section)
        if line is None:
            message, remedy = "is no control that has a counterpart here", nearest(control, section)
        else:
            message, remedy = line.told()
        hint = TRANSLATE if number == 0 else ""
        yield Problem(key, message, "; ".join(part for part in (remedy, hint) if part))


def names(section: str, key: str) -> bool:
    """Whether a file of MILES, or of an adapter around it, has that very key in a section of that name."""
    return f"{section}.{key}" in dials()


def answer(section: str, key: str) -> tuple[str, str] | None:
    """Message and remedy for a key that a section of ours does not know, if it is a control of MILES."""
    line = dials().get(f"{section}.{key}") or find(key)
    if line is None or line.is_ours:
        return None
    message, remedy = line.told()
    return f"is a name of MILES: {message}" if line.answer == "key" else message, remedy
