"""One file of JSON lines, to Parquet: what is in it, the conversion, and the proof that nothing was lost in it. Of the
extra `analysis`.

DuckDB reads JSON leniently: it takes what is no row, makes numbers of texts, and leaves out fields that it was not told
of. So it is given nothing but lines that `lines.parse` takes, and what it made of them is read back and compared with
what `lines.parse` gives, row by row.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from reroll_records.store.compacted import Origin, origin_of, rows
from reroll_records.store.database import COLUMNS, RESPONSE, connect, literal, quoted
from reroll_records.store.lines import complete_lines, parse
from reroll_records.store.rows import DISPOSITION_FIELDS, GROUP_FIELDS
from reroll_records.store.sources import SOURCE_KEY

GROUP_BYTES = 64 << 20
"""Of JSON lines whose rows make one row group, more or less: the part of a file that is held while it is written."""
GROUP_ROWS = 122_880
"""Of a row group at most; what DuckDB makes them of by itself."""
LONGEST_IN_PARALLEL = 8 << 20
"""Bytes of a line from which one thread reads alone: each holds buffers for lines of the longest kind."""


class ConversionError(ValueError):
    """A file cannot be converted without loss. The message goes on after its name."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a file of JSON lines.

    Attributes:
        longest: bytes of its longest line.
        group_rows: so many rows in a row hold twice `GROUP_BYTES` at most, or one of them does alone.
    """

    origin: Origin
    longest: int
    group_rows: int


def contents(path: Path) -> Contents:
    """Of a file as it is now.

    Raises:
        ConversionError: a row has a field that no column holds.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256()
    position = number = found = longest = held = held_rows = 0
    group_rows = GROUP_ROWS
    for line in _lines(path, size):
        number += 1
        digest.update(line)
        digest.update(b"\n")
        position += len(line) + 1
        longest = max(longest, len(line))
        row = parse(line)
        if row is None:
            continue
        if field := unknown_field(row):
            raise ConversionError(f"line {number} has {field}, which no column holds")
        found += 1
        if held and held + len(line) > GROUP_BYTES:
            group_rows, held, held_rows = min(group_rows, held_rows), 0, 0
        held, held_rows = held + len(line), held_rows + 1
    _digest_rest(digest, path, position, size)
    origin = Origin(path.name, size, digest.hexdigest(), position < size, number - found, found)
    return Contents(origin, longest, group_rows)


def write(path: Path, what: Contents, folder: Path, memory_bytes: int, threads: int) -> Path:
    """Writes the file's rows to a Parquet file in `folder`, brings it to the disk, and returns it.

    Raises:
        ConversionError: DuckDB does not read the rows.
        OSError: the disk is full, or the memory does not do.
    """

    target = folder / "rows.parquet"
    readable = path if what.origin.only_rows else _only_rows(path, what.origin.size, folder / "rows.jsonl")
    columns = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in COLUMNS.items())
    reading = (
        f"read_json({literal(readable)}, format = 'newline_delimited', columns = {{{columns}}}, "
        f"maximum_object_size = {max(what.longest + 1024, 16 << 20)})"
    )
    options = (
        f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {what.group_rows}, "
        f"KV_METADATA {{{SOURCE_KEY}: {quoted(json.dumps(what.origin.to_json()))}}}"
    )
    alone = what.longest > LONGEST_IN_PARALLEL
    connection = connect(folder / "spilled", memory_bytes, 1 if alone else threads)
    with _told("DuckDB does not convert it"):
        try:
            connection.execute(f"COPY (SELECT * FROM {reading}) TO {quoted(str(target))} ({options})")
        finally:
            connection.close()
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target


def check(path: Path, compacted: Path, folder: Path, memory_bytes: int) -> Origin:
    """Compares every row of a Parquet file with the row of its line, in their order, and what its footer says with the
    file of lines. Returns what the footer says.

    Raises:
        ConversionError: they differ; the message says where.
        ForeignFileError: the Parquet file has no footer of ours.
        OSError: a file cannot be read, or the memory does not do.
    """
    origin = origin_of(compacted)
    connection = connect(folder / "spilled", memory_bytes, 1)
    with _told(f"{compacted.name} cannot be read back"):
        try:
            found = _compare(path, origin, rows(connection, compacted))
        finally:
            connection.close()
    if found != origin:
        raise ConversionError(f"it changed: {compacted.name} was made of other bytes")
    return origin


def _compare(path: Path, origin: Origin, compacted: Iterator[dict[str, Any]]) -> Origin:
    """The file as it is while it is compared."""
    digest = hashlib.sha256()
    position = number = found = 0

    def parsed() -> Iterator[dict[str, Any]]:
        nonlocal position, number
        for line in _lines(path, origin.size):
            number += 1
            digest.update(line)
            digest.update(b"\n")
            position += len(line) + 1
            if (row := parse(line)) is not None:
                yield row

    for ours, theirs in zip_longest(parsed(), compacted):
        if ours != theirs:
            raise ConversionError(f"line {number} {_difference(ours, theirs)}")
        found += 1
    _digest_rest(digest, path, position, origin.size)
    size = path.stat().st_size
    return Origin(path.name, size, digest.hexdigest(), position < origin.size, number - found, found)


def _difference(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> str:
    if ours is None:
        return "is the last one, and there are more rows in Parquet"
    if theirs is None:
        return "is a row that is not in Parquet"
    names = [name for name in ours if name not in theirs or ours[name] != theirs[name]]
    return f"reads differently in Parquet: {', '.join(names) or 'there are fields more'}"


def _lines(path: Path, size: int) -> Iterator[bytes]:
    """Complete lines of the file's first `size` bytes."""
    position = 0
    for line in complete_lines(path, 0, size):
        position += len(line) + 1
        if position > size:
            return
        yield line


def _digest_rest(digest: Any, path: Path, position: int, size: int) -> None:
    """What follows the last complete line."""
    with path.open("rb") as file:
        file.seek(position)
        while position < size and (block := file.read(min(size - position, 1 << 20))):
            digest.update(block)
            position += len(block)


def _only_rows(path: Path, size: int, target: Path) -> Path:
    """A copy of the file without what is no row."""
    with target.open("wb") as file:
        for line in _lines(path, size):
            if parse(line) is not None:
                file.write(line)
                file.write(b"\n")
    return target


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of DuckDB as those of `write` and `check`."""
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise OSError(errno.ENOMEM, f"{what}: {_first_line(error)}; give it more memory") from None
    except duckdb.IOException as error:
        raise OSError(errno.EIO, f"{what}: {_first_line(error)}") from None
    except duckdb.Error as error:
        raise ConversionError(f"{what}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


_GROUP = frozenset({"kind", "schema", *GROUP_FIELDS, "prompt"})
_DISPOSITION = frozenset(DISPOSITION_FIELDS)
_RESPONSE = frozenset(RESPONSE)
_VALIDITY = frozenset(RESPONSE["validity"])
_COMPONENT = frozenset(RESPONSE["reward_components"][0])


def unknown_field(row: dict[str, Any]) -> str | None:
    """A field that a row of `lines.parse` has beside those of the format; None if it has none."""
    if row["kind"] == "disposition":
        return _beside(row, _DISPOSITION, "")
    if not row.keys() <= _GROUP:
        return _beside(row, _GROUP, "")
    for item in row["responses"]:
        found = _beside(item, _RESPONSE, "responses.") or _beside(item["validity"], _VALIDITY, "responses.validity.")
        for part in item["reward_components"]:
            found = found or _beside(part, _COMPONENT, "responses.reward_components.")
        if found:
            return found
    return None


def _beside(fields: dict[str, Any], known: frozenset[str], prefix: str) -> str | None:
    if fields.keys() <= known:
        return None
    return prefix + min(fields.keys() - known)
