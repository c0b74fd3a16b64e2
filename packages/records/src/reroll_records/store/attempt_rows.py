"""Rows of one attempt, from its JSON lines or from the Parquet that they were compacted to. The standard library alone
reads JSON lines; Parquet takes the extra `analysis`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reroll_records.store.layout import StoreError
from reroll_records.store.lines import complete_lines, parse
from reroll_records.store.sources import Source


class AttemptRows:
    """Iterates over the rows of an attempt, in the order in which they were written.

    Attributes:
        unreadable: lines that were no rows, once the iteration has ended.
    """

    def __init__(self, source: Source) -> None:
        self.unreadable = source.unreadable
        self._source = source

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Raises StoreError where the rows are in Parquet, and DuckDB is missing or cannot read them."""
        return _parquet_rows(self._source.path) if self._source.compacted else self._parsed()

    def _parsed(self) -> Iterator[dict[str, Any]]:
        for line in complete_lines(self._source.path, 0, self._source.complete):
            row = parse(line)
            if row is None:
                self.unreadable += 1
            else:
                yield row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from reroll_records.store.compacted import rows
    from reroll_records.store.database import in_memory

    connection = in_memory()
    from duckdb import Error

    try:
        yield from rows(connection, path)
    except Error as error:
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path} cannot be read: {reason}; restore it or move it away") from None
    finally:
        connection.close()
