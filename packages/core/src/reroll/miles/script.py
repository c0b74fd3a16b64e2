"""The flags of a shell script that starts MILES: `--lr 1e-6`, most often in arrays such as `OPTIMIZER_ARGS=( … )`.

Assignments, arrays and the variables that they set are followed. Nothing is run: what only a shell could know, such as
the environment or the output of a command, is a fault where a control needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from reroll.api import Problem
from reroll.dials.table import find
from reroll.miles.draft import Note
from reroll.miles.words import Array, Piece, Variable, Word, statements

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
CONDITIONS = {"if", "elif", "case", "[[", "[", "&&", "||", "while", "for"}
LONGEST = 1 << 20
"""Characters of one word, filled in."""


@dataclass
class Script:
    """What the flags say.

    Attributes:
        given: control without its section → value.
        lines: control → line, counted from 1.
        problems: without the file's name.
    """

    given: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class Argument:
    """A word after its variables were filled in; `unknown` names the first that could not be."""

    text: str
    line: int
    unknown: str | None = None


@dataclass
class Shell:
    """Variables and arrays so far."""

    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Argument]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    """Arrays that nothing has set → the line that wants one."""

    def expand(self, words: Iterable[Word]) -> Iterator[Argument]:
        for word in words:
            arrays = [piece.name for piece in word.pieces if isinstance(piece, Array)]
            if arrays:
                yield from self._array(arrays[0], word.line)
            else:
                yield self._argument(word)

    def _array(self, name: str, line: int) -> Iterator[Argument]:
        if name not in self.arrays:
            self.missing.setdefault(name, line)
        yield from self.arrays.get(name, ())

    def _argument(self, word: Word) -> Argument:
        unknown: str | None = None
        text = ""
        for piece in word.pieces:
            found = self._text(piece)
            if found is None:
                unknown = unknown or str(piece)
            text += found or ""
            if len(text) > LONGEST:  # variables that double one another would fill the memory
                return Argument("", word.line, f"more than {LONGEST:,} characters")
        return Argument(text, word.line, unknown)

    def _text(self, piece: Piece) -> str | None:
        if isinstance(piece, Variable):
            return self.texts.get(piece.name, piece.default)
        return piece if isinstance(piece, str) else None


def read_script(text: str) -> Script:
    """The flags of the program `….py` that the script calls, or of all its arrays where it calls none."""
    shell, called, conditional = Shell(), list[Argument](), False
    for words in statements(text):
        first = words[0].plain
        conditional = conditional or first in CONDITIONS
        if first == "export" and len(words) > 1:
            words = words[1:]
        if ASSIGNMENT.match(words[0].plain):
            _assign(shell, words[0])
            continue
        arguments = list(shell.expand(words))
        programs = [index for index, item in enumerate(arguments) if item.text.endswith(".py")]
        if programs:
            called += arguments[programs[-1] + 1 :]
    if not any(item.text.startswith("--") for item in called):
        called = [item for items in shell.arrays.values() for item in items]
    script = _flags(called)
    for name, line in shell.missing.items():
        script.notes.append(Note("by_hand", f"${{{name}[@]}}", f"line {line}: is set elsewhere, and was not read"))
    if conditional:
        text = "are not evaluated: what stands under them is read as if they all held"
        script.notes.append(Note("by_hand", "the script's conditions", text))
    return script


def _assign(shell: Shell, word: Word) -> None:
    matched = ASSIGNMENT.match(word.plain)
    assert matched is not None
    name, adds = matched[1], bool(matched[2])
    if word.array is not None:
        items = list(shell.expand(word.array))
        shell.arrays[name] = (shell.arrays.get(name, []) if adds else []) + items
        return
    whole = next(shell.expand([word]))
    value = whole.text[matched.end() :]
    if whole.unknown is None:
        shell.texts[name] = shell.texts.get(name, "") + value if adds else value
    else:
        shell.texts.pop(name, None)


def _flags(arguments: list[Argument]) -> Script:
    """Flags and what follows each, up to the next one; a repeated flag replaces the earlier."""
    script = Script()
    starts = [index for index, item in enumerate(arguments) if item.text.startswith("--") and len(item.text) > 2]
    for index, following in pairwise([*starts, len(arguments)]):
        flag, separator, value = arguments[index].text[2:].partition("=")
        items = [Argument(value, arguments[index].line, arguments[index].unknown)] if separator else []
        items += arguments[index + 1 : following]
        _flag(script, flag.replace("-", "_"), arguments[index].line, items)
    return script


def _flag(script: Script, control: str, line: int, items: list[Argument]) -> None:
    off = control.startswith("no_") and find(control) is None and find(control[3:]) is not None
    control = control[3:] if off else control
    known = find(control)
    if unknown := next((item for item in items if item.unknown), None):
        if known is None or known.answer != "key":
            items = []  # its value changes no answer
        else:
            name = "--" + control.replace("_", "-")
            script.problems.append(
                Problem(
                    name,
                    f"holds {unknown.unknown}, which the script does not set",
                    "write the value in its place",
                    line=unknown.line,
                )
            )
            return
    script.lines[control] = line
    values = [_value(item.text) for item in items]
    script.given[control] = not off if not values else values[0] if len(values) == 1 else values


def _value(text: str) -> Any:
    """A number or truth as such; JSON and everything else as text."""
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)
