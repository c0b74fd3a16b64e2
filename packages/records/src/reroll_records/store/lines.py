"""Complete lines of a record file, and the rows that they hold. The standard library alone; orjson decodes where it is
installed, and takes and refuses the same lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reroll_records.store.checks import is_row

CHUNK = 1 << 20
DEEPEST = 256
"""Levels of nesting of a row, which has seven. Decoders give up at depths of their own, and the standard one at a depth
that depends on its caller."""


def complete_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Lines that begin at or after byte `start` and before byte `end`, without their newline; what follows the last
    newline of the file is no line.

    A part of a file that begins in the middle of a line begins with the next one, so that adjoining parts hold every
    line once.
    """
    with path.open("rb", buffering=CHUNK) as file:
        position = start
        if start:
            file.seek(start - 1)
            position += len(file.readline()) - 1
        for line in file:
            if (end is not None and position >= end) or line[-1:] != b"\n":
                return
            position += len(line)
            yield line[:-1]


def ends_incomplete(path: Path, size: int) -> bool:
    """Whether the last of the file's first `size` bytes is no newline."""
    if not size:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"


def parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for what is no row of this schema."""
    if line.count(b"[") + line.count(b"{") > DEEPEST and _depth(line) > DEEPEST:
        return None
    try:
        row = _decode(line)
    except (ValueError, RecursionError):
        return None
    return row if is_row(row) else None


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)')  # to the end where it has none: the line is read once, however odd
_BRACKET = re.compile(rb"[\[\]{}]")


def _depth(line: bytes) -> int:
    """Brackets outside of strings that are open at once, at most; counted no further than matters."""
    depth = deepest = 0
    for found in _BRACKET.finditer(_STRING.sub(b"", line)):
        depth += 1 if found[0] in b"[{" else -1
        if depth > deepest:
            deepest = depth
            if deepest > DEEPEST:
                break
    return deepest


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_strict = json.JSONDecoder(parse_constant=_refuse)


def _standard(line: bytes) -> Any:
    return _strict.decode(line.decode())


def _decoder() -> Callable[[bytes], Any]:
    try:
        from orjson import loads
    except ImportError:
        return _standard

    def decode(line: bytes) -> Any:
        try:
            return loads(line)
        except ValueError:
            return _standard(line)  # it refuses half a surrogate pair and very long integers, which are JSON

    return decode


_decode = _decoder()
