"""A store as a Hugging Face data set: Parquet shards that DuckDB writes, and a card. Of the extra `analysis`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Literal

from reroll_records.api import RecordStore
from reroll_records.export.data_card import COLUMNS, RESPONSE_COLUMNS, CardFacts, data_card, database_type
from reroll_records.store.database import LEFT_AS, connect, literal, name_of, quoted, require_duckdb
from reroll_records.store.layout import Attempt, StoreError
from reroll_records.store.rows import PolicyScope

if TYPE_CHECKING:
    import duckdb

RowKind = Literal["responses", "groups"]
Rows = Iterator[tuple[Attempt, dict[str, Any]]]

SHARD_BYTES = 256 << 20
"""JSON that goes into one shard; zstd makes a tenth to a third of it."""
MEMORY = 1 << 30
ROW_GROUP = 8192
"""Rows that a reader unpacks at once."""


@dataclass(frozen=True)
class Choice:
    """What of a store goes into the data set.

    Attributes:
        rows: `responses`: one row each; `groups`: one row each, with its responses nested.
        scopes: policy scopes of responses; empty for all of them.
        valid_only: only responses of which every verifier vouches for its score.
        lineage: only of this starting checkpoint; None for all of them.
    """

    rows: RowKind = "responses"
    scopes: tuple[PolicyScope, ...] = ()
    valid_only: bool = False
    lineage: str | None = None

    def takes(self, response: dict[str, Any]) -> bool:
        if self.scopes and response["policy_scope"] not in self.scopes:
            return False
        return not self.valid_only or response["validity"]["valid"] is True


def write_dataset(store: RecordStore, target: Path, choice: Choice, shard_bytes: int = SHARD_BYTES) -> CardFacts:
    """The whole folder `target`, or none of it: `README.md` and `data/train-*.parquet`, which
    `datasets.load_dataset(target)` reads. A store that grows meanwhile is exported as it was when this began.

    Raises:
        StoreError: `target` holds something or cannot be written, no row was chosen, or DuckDB is not installed.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is not empty: name a new folder, or remove what is in it")
    attempts = [attempt for attempt in store.attempts if choice.lineage in (None, attempt.lineage)]
    require_duckdb()
    import duckdb

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            whole, stage = Path(folder, "whole"), Path(folder, "stage")
            (whole / "data").mkdir(parents=True)
            stage.mkdir()
            shards = _write_shards(store, attempts, choice, stage, whole / "data", shard_bytes)
            if not shards:
                raise StoreError("no response of the store matches, so that there is no data set to write")
            facts = CardFacts.of(attempts, sum(shards), len(shards))
            (whole / "README.md").write_text(data_card(choice.rows, facts, _words(choice)), encoding="utf-8")
            os.replace(whole, target)
    except FileNotFoundError as error:
        gone = f"{error.filename} went while it was read, as compacted or moved files do"
        raise StoreError(f"{gone}: export again") from None
    except (duckdb.Error, OSError) as error:
        raise StoreError(
            f"{target} cannot be written ({_reason(error)}): give a folder where there is room for the data set and "
            "once more for the rows of a shard"
        ) from None
    return facts


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _write_shards(
    store: RecordStore, attempts: list[Attempt], choice: Choice, stage: Path, target: Path, shard_bytes: int
) -> list[int]:
    """Rows of each shard."""
    moment = store.moment()
    connection = connect(stage, MEMORY, threads=2)
    try:
        _load_dispositions(connection, store.rows(attempts=attempts, as_of=moment), stage / "dispositions.jsonl")
        batches = _batches(store.rows(attempts=attempts, as_of=moment), choice, stage / "rows.jsonl", shard_bytes)
        shards = [
            _write_shard(connection, batch, target / f"{number}.parquet", choice.rows)
            for number, batch in enumerate(batches)
        ]
    finally:
        connection.close()
    for number in range(len(shards)):
        (target / f"{number}.parquet").rename(target / f"train-{number:05d}-of-{len(shards):05d}.parquet")
    return shards


def _words(choice: Choice) -> str:
    scopes = f"those of policy scope {' or '.join(choice.scopes)}" if choice.scopes else "those of every policy scope"
    return f"{scopes}, {'with `validity.valid = true` only' if choice.valid_only else 'whatever their validity'}"


@dataclass(frozen=True)
class Batch:
    """Rows of one shard.

    Attributes:
        longest: bytes of the longest line.
    """

    path: Path
    longest: int


def _batches(rows: Rows, choice: Choice, path: Path, shard_bytes: int) -> Iterator[Batch]:
    """Chosen rows as JSON lines, numbered in the order of the store, a file for every shard; one at a time is there.

    They pass through `is_row` as everywhere, so that a data set holds what every command counts.
    """
    number = size = longest = 0
    file: IO[bytes] | None = None
    for attempt, row in rows:
        for values in _rows(attempt, row, choice) if row["kind"] == "group" else ():
            file = file or path.open("wb")
            line = _line(values | {"number": number})
            file.write(line)
            number, size, longest = number + 1, size + len(line), max(longest, len(line))
        if file is not None and size >= shard_bytes:
            file.close()
            yield Batch(path, longest)
            file, size, longest = None, 0, 0
    if file is not None:
        file.close()
        yield Batch(path, longest)


def _rows(attempt: Attempt, row: dict[str, Any], choice: Choice) -> Iterator[dict[str, Any]]:
    group = {name: row.get(name) for name in COLUMNS} | {
        "lineage": attempt.lineage,
        "protocol": attempt.protocol_digest,
        "run_id": attempt.run_id,
        "run_name": attempt.run_name,
        "source": attempt.source,
        "attempt": attempt.id,
    }
    responses = [_response(item) for item in row["responses"] if choice.takes(item)]
    if choice.rows == "responses":
        yield from (group | response for response in responses)
    elif responses:
        yield group | {"responses": responses}


def _response(item: dict[str, Any]) -> dict[str, Any]:
    """Maps are no type that data sets have; they become lists of name and value."""
    values = {name: item.get(name) for name in RESPONSE_COLUMNS}
    values["valid"] = item["validity"]["valid"]
    values["validity"] = [{"name": name, "state": state} for name, state in item["validity"]["components"].items()]
    values["reward_components"] = [
        {"name": part["name"], "score": part["score"], "weight": part["weight"]} for part in item["reward_components"]
    ]
    return values


def _line(values: dict[str, Any]) -> bytes:
    """Halves of surrogate pairs, which JSON can spell and Parquet's UTF-8 cannot, become U+FFFD."""
    try:
        return _encode(values) + b"\n"
    except (TypeError, UnicodeEncodeError):
        text = json.dumps(values, ensure_ascii=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode() + b"\n"


def _encoder() -> Callable[[dict[str, Any]], bytes]:
    try:
        from orjson import dumps
    except ImportError:
        return lambda values: json.dumps(values, ensure_ascii=False).encode()
    return dumps


_encode = _encoder()


def _load_dispositions(connection: duckdb.DuckDBPyConnection, rows: Rows, path: Path) -> None:
    """All of them first, as one may stand before or long after its group; which of a group's counts is told beside
    `rows.DispositionRow`."""
    longest = 0
    with path.open("wb") as file:
        for number, (attempt, row) in enumerate(rows):
            if row["kind"] == "disposition":
                named = {"attempt": attempt.id, "number": number, "staleness": row["staleness"]}
                line = _line(named | {name: row[name] for name in ("observation_id", "disposition")})
                file.write(line)
                longest = max(longest, len(line))
    columns = {"attempt": "VARCHAR", "observation_id": "VARCHAR", "disposition": "VARCHAR"}
    table = _json_table(Batch(path, longest), columns | {"staleness": "BIGINT", "number": "BIGINT"})
    connection.execute(
        "CREATE TABLE dispositions AS SELECT DISTINCT ON (attempt, observation_id) "
        f"attempt, observation_id, disposition, staleness FROM {table} "
        "ORDER BY attempt, observation_id, disposition, number"
    )
    path.unlink()


def _write_shard(connection: duckdb.DuckDBPyConnection, batch: Batch, target: Path, rows: RowKind) -> int:
    """The number of rows in it."""
    columns = COLUMNS | (RESPONSE_COLUMNS if rows == "responses" else {})
    types = {name: database_type(column.feature) for name, column in columns.items()}
    if rows == "groups":
        types["responses"] = database_type([{name: column.feature for name, column in RESPONSE_COLUMNS.items()}])
    joined = {
        "disposition": LEFT_AS.format(disposition="left_as.disposition"),
        "staleness": "CASE filter_decision WHEN 'passed' THEN left_as.staleness END",
    }
    selected = ", ".join(f"{joined.get(name, f'given.{name_of(name)}')} AS {name_of(name)}" for name in types)
    given = {name: kind for name, kind in types.items() if name not in joined} | {"number": "BIGINT"}
    counted = connection.execute(
        f"COPY (SELECT {selected} FROM {_json_table(batch, given)} AS given LEFT JOIN dispositions AS left_as "
        "ON given.attempt = left_as.attempt AND given.observation_id = left_as.observation_id ORDER BY given.number) "
        f"TO {quoted(str(target))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
    ).fetchone()
    assert counted is not None, "COPY says how many rows it wrote"
    return int(counted[0])


def _json_table(batch: Batch, columns: dict[str, str]) -> str:
    typed = ", ".join(f"{name_of(name)}: {quoted(kind)}" for name, kind in columns.items())
    return (
        f"read_json({literal(batch.path)}, format='newline_delimited', columns={{{typed}}}, "
        f"maximum_object_size={max(batch.longest + 1, 1 << 24)})"
    )
