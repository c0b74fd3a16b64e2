"""A translated run file as text: sections in the order of the configuration, comments above what differs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tomli_w

from reroll.api import Problem
from reroll.miles.draft import Note

ORDER = ("run", "model", "data", "rollout", "async", "objective", "trainer", "placement", "serving", "sglang")
"""Sections that come first; the others follow by name."""
REFUSED = "`reroll plan` refuses this file until this is mended:"
TITLES = {
    "refused": "Refused: without it the run is another one",
    "unknown": "Unknown:",
    "by_hand": "To be given by hand:",
    "not_needed": "Not needed here:",
    "default": "Not given, with another default:",
}
WIDTH = 118


def run_file(
    table: Mapping[str, Mapping[str, Any]],
    comments: Mapping[str, str],
    notes: Sequence[Note],
    refusals: Sequence[Problem] = (),
) -> str:
    """TOML that parses to `table`.

    Args:
        comments: dotted key → a comment above it.
        notes: what the file does not say, as comments at its end.
        refusals: for what `reroll plan` refuses it, as comments at its head.
    """
    lines: list[str] = []
    if refusals:
        lines.append(f"# {REFUSED}")
        for problem in refusals:
            remedy = f"; {problem.remedy}" if problem.remedy else ""
            lines += _comment(f"{problem.key}: {problem.message}{remedy}")
        lines.append("")
    first = [name for name in ORDER if table.get(name)]
    for section in [*first, *sorted(name for name in table if table[name] and name not in ORDER)]:
        lines.append(f"[{_key(section)}]")
        for key, value in table[section].items():
            if comment := comments.get(f"{section}.{key}"):
                lines += _comment(comment)
            lines.append(f"{_key(key)} = {toml_value(value)}")
        lines.append("")
    for title, told in by_kind(notes):
        lines += [f"# {title}", *(line for note in told for line in _comment(f"{note.about}: {note.text}")), ""]
    return "\n".join(lines)


def by_kind(notes: Sequence[Note]) -> Iterator[tuple[str, list[Note]]]:
    """Title and notes of each kind that there is."""
    for kind, title in TITLES.items():
        if told := [note for note in notes if note.kind == kind]:
            yield title, told


def _comment(text: str) -> list[str]:
    plain = "".join(character if character.isprintable() else " " for character in text)
    return textwrap.wrap(plain, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _scalar(name)


def toml_value(value: Any) -> str:
    """On one line, tables and lists of them included."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    return tomli_w.dumps({"key": value}).removeprefix("key = ").rstrip("\n")
