"""Record files in Parquet: what is said in their footers, and their rows. Of the extra `analysis`.

A compacted attempt is read as its JSON lines were. The footer has what the rows do not: which file they came from, so
that earlier input snapshots keep their meaning, and which of its lines are no rows, so that warnings stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reroll_records.store.database import COLUMNS, literal, name_of
from reroll_records.store.layout import StoreError
from reroll_records.store.rows import DISPOSITION_FIELDS, GROUP_FIELDS
from reroll_records.store.sources import compacted_source

if TYPE_CHECKING:
    import duckdb

_HELD = 16 << 20
"""Bytes of rows that are fetched at a time, more or less."""
_LARGE = 64 << 10
"""Bytes of a row from which its text is not made for it: that takes several times the row's memory."""
_OF_GROUPS = ("kind", "schema", *GROUP_FIELDS)


class ForeignFileError(StoreError):
    """A Parquet file with the name of a compacted one is none."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of JSON lines that was compacted.

    Attributes:
        name: of the file, beside which the Parquet file was made.
        size: in bytes, all of them: what follows its last newline too.
        sha256: of these bytes.
        incomplete: whether the last of them was no newline.
        unreadable: complete lines that are no rows; they are not in the Parquet file.
        rows: those that are.
    """

    name: str
    size: int
    sha256: str
    incomplete: bool
    unreadable: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def only_rows(self) -> bool:
        """Whether the Parquet file has everything that the lines had."""
        return not self.incomplete and not self.unreadable


def origin_of(path: Path) -> Origin:
    """What the footer of a compacted file says.

    Raises:
        ForeignFileError: the file was not made by compaction, or it is damaged.
        OSError: it cannot be read.
    """
    found = compacted_source(path)
    if found is None:
        raise ForeignFileError(f"{path} was not written by `reroll records compact`, or is damaged: move it elsewhere")
    return Origin(**{item.name: found[item.name] for item in fields(Origin)})


def rows(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a compacted file in their order, each equal to what `lines.parse` gives of its line.

    Raises:
        ForeignFileError: as `origin_of`.
        duckdb.Error: the file cannot be read.
    """
    names = ", ".join(map(name_of, COLUMNS))
    selected = f"SELECT {names} FROM read_parquet({literal(path)})"
    origin = origin_of(path)
    average = origin.size // max(origin.rows, 1)
    if average > _LARGE:
        found = connection.execute(selected)
        while taken := found.fetchmany(max(_HELD // average, 1)):
            for values in taken:
                yield row(dict(zip(COLUMNS, values, strict=True)))
    else:  # one text is decoded several times as fast as a record of structures is made
        found = connection.execute(f"SELECT to_json(found)::VARCHAR FROM ({selected}) found")
        decode = _decoder()
        while taken := found.fetchmany(max(_HELD // max(average, 1), 1)):
            for (text,) in taken:
                yield row(decode(text))


def row(values: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a record of `COLUMNS`: without the columns of the other kind, and without texts that it has not."""
    if values["kind"] == "disposition":
        return {name: values[name] for name in DISPOSITION_FIELDS}
    found = {name: values[name] for name in _OF_GROUPS}
    for response in found["responses"]:
        if response["response"] is None:
            del response["response"]
    return found if values["prompt"] is None else found | {"prompt": values["prompt"]}


def _decoder() -> Callable[[str], Any]:
    try:
        from orjson import loads
    except ImportError:
        return json.loads
    return loads
