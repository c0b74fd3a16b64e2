"""A shell script's words, with quotes and comments taken off and variables marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
BRACED = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?::?-(.*))?", re.ASCII | re.DOTALL)
SEPARATORS = ";&|\n"
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


@dataclass(frozen=True)
class Variable:
    """`$NAME`, or `${NAME:-default}`."""

    name: str
    default: str | None = None

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True)
class Array:
    """`${NAME[@]}`."""

    name: str

    def __str__(self) -> str:
        return f"${{{self.name}[@]}}"


@dataclass(frozen=True)
class Command:
    """What only a shell knows: `$(…)`, and what is written in backquotes."""

    text: str

    def __str__(self) -> str:
        return self.text


Piece = str | Variable | Array | Command


@dataclass
class Word:
    """One word.

    Attributes:
        line: where it begins, counted from 1.
        array: the words of `NAME=( … )`, whose pieces are then `NAME=`.
    """

    line: int
    pieces: list[Piece] = field(default_factory=list)
    array: list[Word] | None = None

    @property
    def plain(self) -> str:
        """Its text up to the first variable."""
        return self.pieces[0] if self.pieces and isinstance(self.pieces[0], str) else ""

    def add(self, piece: Piece) -> None:
        if isinstance(piece, str) and self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += piece
        else:
            self.pieces.append(piece)


def statements(text: str) -> Iterator[list[Word]]:
    """Words up to the end of a line, `;`, `&` or `|`. A quote that is never closed ends with the text."""
    reader = _Reader(_without_documents(text))
    while not reader.done:
        if words := reader.words(SEPARATORS):
            yield words


def _without_documents(text: str) -> str:
    """Blanks the lines of `<<EOF` documents, which are no commands."""
    kept, end = list[str](), None
    for line in text.splitlines():
        if end is not None:
            kept.append("")
            end = None if line.strip() == end else end
            continue
        kept.append(line)
        if not line.lstrip().startswith("#") and "<<<" not in line and (found := HEREDOC.search(line)):
            end = found[2]
    return "\n".join(kept)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1

    @property
    def done(self) -> bool:
        return self.at >= len(self.text)

    def _next(self) -> str:
        character = self.text[self.at]
        self.at += 1
        self.line += character == "\n"
        return character

    def words(self, ends: str) -> list[Word]:
        """Words up to one of `ends`, which is taken as well."""
        found: list[Word] = []
        word: Word | None = None
        while not self.done:
            ahead = self.text[self.at]
            if ahead in ends or (word is None and ahead == ")"):
                self._next()
                break
            if ahead.isspace():
                self._next()
                word = None
            elif ahead == "#" and word is None:
                self._until("\n")
            elif self.text.startswith("\\\n", self.at):
                self._next()
                self._next()
                word = None
            else:
                if word is None:
                    word = Word(self.line)
                    found.append(word)
                self._piece(word)
        return found

    def _piece(self, word: Word) -> None:
        character = self._next()
        if character == "'":
            word.add(self._until("'"))
            self.at += 1
        elif character == '"':
            self._quoted(word)
        elif character == "\\":
            word.add("" if self.done else self._next())
        elif character == "$":
            word.add(self._variable())
        elif character == "`":
            word.add(Command(f"`{self._until('`')}`"))
            self.at += 1
        elif character == "(" and word.plain.endswith("=") and len(word.pieces) == 1:
            word.array = self.words(")")
        else:
            word.add(character)

    def _quoted(self, word: Word) -> None:
        word.add("")
        while not self.done:
            character = self._next()
            if character == '"':
                return
            if character == "\\" and not self.done and self.text[self.at] in '"\\$`\n':
                escaped = self._next()
                word.add("" if escaped == "\n" else escaped)
            elif character == "$":
                word.add(self._variable())
            elif character == "`":
                word.add(Command(f"`{self._until('`')}`"))
                self.at += 1
            else:
                word.add(character)

    def _variable(self) -> Piece:
        """What stands after `$`."""
        if self.text.startswith("(", self.at):
            return Command(f"${self._balanced('(', ')')}")
        if self.text.startswith("{", self.at):
            inside = self._balanced("{", "}")[1:-1]
            found = BRACED.fullmatch(inside)
            if found is None or (found[3] and "$" in found[3]):
                return Command(f"${{{inside}}}")
            return Array(found[1]) if found[2] else Variable(found[1], found[3])
        if found := NAME.match(self.text, self.at):
            self.at = found.end()
            return Variable(found[0])
        return "$" if self.done or self.text[self.at] not in "0123456789@*#?!$" else Command("$" + self._next())

    def _until(self, end: str) -> str:
        start = self.at
        while not self.done and self.text[self.at] != end:
            self._next()
        return self.text[start : self.at]

    def _balanced(self, opening: str, closing: str) -> str:
        start, depth = self.at, 0
        while not self.done:
            character = self._next()
            depth += (character == opening) - (character == closing)
            if depth == 0:
                break
        return self.text[start : self.at]
