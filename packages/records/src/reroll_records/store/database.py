"""DuckDB over record files: the columns that rows have in it, names and texts in SQL, and connections. Of the extra
`analysis`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reroll_records.store.layout import StoreError
from reroll_records.store.rows import GROUP_FIELDS

if TYPE_CHECKING:
    import duckdb

Form = Any
"""A type of DuckDB as text; a list of one form; or name → form."""

RESPONSE: Mapping[str, Form] = {
    "index": "BIGINT",
    "reward": "DOUBLE",
    "reward_components": [{"name": "VARCHAR", "score": "DOUBLE", "weight": "DOUBLE"}],
    "validity": {"valid": "BOOLEAN", "components": "MAP(VARCHAR, VARCHAR)"},
    "response_tokens": "BIGINT",
    "status": "VARCHAR",
    "truncated": "BOOLEAN",
    "policy_versions": ["BIGINT"],
    "policy_scope": "VARCHAR",
    "seed": "BIGINT",
    "response": "VARCHAR",
}
"""`rows.RESPONSE_FIELDS` with their forms."""

LEFT_AS = (
    "CASE filter_decision WHEN 'passed' THEN coalesce({disposition}, 'unused') "
    "WHEN 'filtered' THEN 'filtered:' || filter_reason ELSE filter_decision END"
)
"""`rows.left_as` in SQL; `disposition` is the column of a disposition row's, null without one."""


def name_of(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def literal(path: Path) -> str:
    """A file's name in SQL, where it stands for this file alone: characters of patterns are bracketed."""
    return quoted("".join(f"[{part}]" if part in "*?[" else part for part in str(path)))


def type_of(form: Form) -> str:
    """A form as DuckDB writes it."""
    if isinstance(form, str):
        return form
    if isinstance(form, list):
        return f"{type_of(form[0])}[]"
    return f"STRUCT({', '.join(f'{name_of(name)} {type_of(inner)}' for name, inner in form.items())})"


_TYPES: Mapping[type, str] = {str: "VARCHAR", int: "BIGINT", bool: "BOOLEAN", float: "DOUBLE"}
_LISTS: Mapping[str, Form] = {"verifiers": ["VARCHAR"], "responses": [RESPONSE]}
COLUMNS: Mapping[str, str] = {
    "kind": "VARCHAR",
    "schema": "BIGINT",
    **{name: type_of(_LISTS.get(name) or _TYPES[kind]) for name, kind in GROUP_FIELDS.items()},
    "prompt": "VARCHAR",
    "disposition": "VARCHAR",
    "staleness": "BIGINT",
}
"""Of both kinds of row together, in the order of a row's fields; a kind has null in the other's columns."""


def require_duckdb() -> None:
    """Before anything is written for which it is needed.

    Raises:
        StoreError: DuckDB is not installed.
    """
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise StoreError("DuckDB is needed, and it is not installed: pip install 'reroll-records[analysis]'") from None


def connect(folder: Path | None = None, memory_bytes: int | None = None, threads: int = 1) -> duckdb.DuckDBPyConnection:
    """A database in memory.

    Args:
        folder: that it spills into; None for what holds little at a time.
        memory_bytes: that it may hold before it spills; None for what DuckDB takes by itself.

    Raises:
        StoreError: DuckDB is not installed.
    """
    require_duckdb()
    import duckdb

    settings: dict[str, Any] = {
        "threads": threads,
        "autoinstall_known_extensions": False,  # nothing is fetched behind the user's back
    }
    if memory_bytes is not None:
        settings["memory_limit"] = f"{memory_bytes}B"
    if folder is not None:
        settings["temp_directory"] = str(folder)
    return quiet(duckdb.connect(config=settings))


def in_memory() -> duckdb.DuckDBPyConnection:
    """A small database of one thread, for rows that are read one after the other.

    Raises:
        StoreError: DuckDB is not installed.
    """
    return connect()


def quiet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """The same connection, which writes no progress between the lines that a command prints. Each cursor is a
    connection of its own in this."""
    connection.execute("SET enable_progress_bar = false")
    return connection
