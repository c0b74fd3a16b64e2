"""Rows of attempts in a table of DuckDB: of compacted attempts, and of JSON lines that have the exact form of a writer.
Of the extra `analysis`.

DuckDB's reader is lenient: it takes text for numbers, drops lines and reads what is no JSON. So a file is taken only
where nothing is left to it: every line that it found has the writer's form, and with their newlines these lines are all
bytes of the file. Any doubt leaves the file to the reader of the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reroll_records.store.database import RESPONSE, Form, literal, name_of, quoted, type_of
from reroll_records.store.forms import WITHOUT_POSSESSION
from reroll_records.store.layout import StoreError
from reroll_records.store.rows import GROUP_FIELDS
from reroll_records.store.sources import Source
from reroll_records.summary import totals

if TYPE_CHECKING:
    import duckdb

LONGEST = 16 << 20
"""Bytes of a line that DuckDB is to hold, twice a thread; a file with a longer one is left to the other reader."""

_KEPT = (
    *("observation_id", "input_key", "task_key", "query_sha256", "prompt_token_sha256"),
    *("source_row", "source_dataset", "prepared_sample_id", "filter_decision", "filter_reason"),
)
_FIELDS: Mapping[str, Form] = {
    "kind": "VARCHAR",
    **{name: "BIGINT" if GROUP_FIELDS[name] is int else "VARCHAR" for name in _KEPT},
    "verifiers": ["VARCHAR"],
    "responses": [
        {
            **{name: RESPONSE[name] for name in ("reward", "response_tokens", "truncated", "policy_scope")},
            "validity": {"valid": "BOOLEAN"},
        }
    ],
    "disposition": "VARCHAR",
}
"""What a summary keeps of rows; as JSON it is what `json_transform` takes."""
_NAMES = ", ".join(map(name_of, _FIELDS))
_OF_PARQUET = (
    "[{'reward': each.reward, 'response_tokens': each.response_tokens, 'truncated': each.truncated, "
    "'policy_scope': each.policy_scope, 'validity': {'valid': each.validity.valid}} for each in responses]"
)


def load(
    connection: duckdb.DuckDBPyConnection, sources: Sequence[Source], provenances: Sequence[totals.Provenance]
) -> list[Source]:
    """Fills the tables `attempts` and `rows`. Returns the sources that are not in it, for the other reader.

    Raises:
        StoreError: a compacted file cannot be read.
    """
    columns = ", ".join(f"{name_of(name)} {type_of(form)}" for name, form in _FIELDS.items())
    connection.execute("CREATE TABLE attempts (attempt BIGINT, file VARCHAR, lineage VARCHAR, protocol VARCHAR)")
    connection.execute("CREATE SEQUENCE places")
    connection.execute(
        f"CREATE TABLE rows (place BIGINT DEFAULT nextval('places'), attempt BIGINT, bytes BIGINT, {columns})"
    )
    for source in sources:
        known = provenances[source.attempt]
        connection.execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?)",
            [source.attempt, str(source.path), known.lineage, known.protocol_digest],
        )
    for source in sources:
        if source.compacted:
            _insert_compacted(connection, source)
    failed = _insert_lines(connection, [each for each in sources if not each.compacted and not each.incomplete])
    checked = dict(_checked(connection))
    refused = [
        source
        for source in sources
        if not source.compacted
        and source.size
        and (source.attempt in failed or checked.get(source.attempt) != source.size)
    ]
    connection.execute("DELETE FROM rows WHERE attempt IN (SELECT unnest(?::BIGINT[]))", [[s.attempt for s in refused]])
    return refused


def _insert_compacted(connection: duckdb.DuckDBPyConnection, source: Source) -> None:
    import duckdb

    values = (
        f"{name_of(name)}::{type_of(form)}" if name != "responses" else _OF_PARQUET for name, form in _FIELDS.items()
    )
    try:
        connection.execute(
            f"INSERT INTO rows (attempt, bytes, {_NAMES}) SELECT {source.attempt}, 0, {', '.join(values)} "
            f"FROM read_parquet({literal(source.path)})"
        )
    except duckdb.Error as error:
        raise StoreError(f"{source.path} cannot be read ({error}): restore it or move it elsewhere") from None


def _insert_lines(connection: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> set[int]:
    """All files at once, which threads share best; the attempts of those that cannot be read."""
    import duckdb

    wanted = [source for source in sources if source.size]
    try:
        _insert(connection, wanted)
    except duckdb.Error:
        failed = set()
        for source in wanted:
            try:
                _insert(connection, [source])
            except duckdb.Error:
                failed.add(source.attempt)
        return failed
    return set()


def _insert(connection: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> None:
    if not sources:
        return
    files = ", ".join(literal(source.path) for source in sources)
    connection.execute(
        f"""INSERT INTO rows (attempt, bytes, {_NAMES})
        SELECT attempt, bytes, {", ".join(f"found.{name_of(name)}" for name in _FIELDS)} FROM (
            SELECT attempts.attempt, strlen(json) + 1 AS bytes,
                CASE WHEN regexp_full_match(json, {quoted(WITHOUT_POSSESSION)})
                    THEN json_transform(json, {quoted(json.dumps(_FIELDS))}) END AS found
            FROM read_json_objects([{files}], format='newline_delimited', ignore_errors=true, filename=true,
                maximum_object_size={min(LONGEST, max(source.size for source in sources))})
            JOIN attempts ON filename = file
        )"""
    )


def _checked(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    """Attempts whose lines all have the writer's form, with the bytes of their lines."""
    return connection.execute(
        "SELECT attempt, sum(bytes) FROM rows GROUP BY attempt "
        "HAVING count(*) = count(kind) AND count(*) = count(bytes)"
    ).fetchall()
