"""A summary's prompts for dataframes. Of the extra `analysis`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from reroll_records.store.database import Form, connect, literal, name_of, quoted, type_of
from reroll_records.store.layout import StoreError
from reroll_records.store.rows import DECISIONS, OUTCOMES

_REWARD = {
    **{"count": "BIGINT", "mean": "DOUBLE", "variance": "DOUBLE", "min": "DOUBLE", "max": "DOUBLE"},
    "histogram": [{"value": "DOUBLE", "count": "BIGINT"}],
}
COLUMNS: Mapping[str, Form] = {
    **dict.fromkeys(("lineage", "input_key", "policy_scope"), "VARCHAR"),
    **dict.fromkeys(("task_key", "query_sha256", "prompt_token_sha256", "protocol_digest"), "VARCHAR"),
    "verifiers": ["VARCHAR"],
    "source_dataset": "VARCHAR",
    "source_row": "BIGINT",
    "prepared_sample_id": "VARCHAR",
    "groups": dict.fromkeys(OUTCOMES, "BIGINT"),
    "filter_decisions": dict.fromkeys(DECISIONS, "BIGINT"),
    "validity": dict.fromkeys(("valid", "invalid", "unknown"), "BIGINT"),
    **dict.fromkeys(("responses", "response_tokens", "truncated_responses", "independent_units"), "BIGINT"),
    "valid_reward": _REWARD,
    "unknown_validity_reward": _REWARD,
}
"""Of a row of `prompts.jsonl`, in its order."""


def write_prompts(rows: Path, target: Path, threads: int, memory: int) -> None:
    """`prompts.jsonl` as Parquet (zstd), a column for each field; never seen half.

    Raises:
        StoreError: DuckDB is not installed, or it cannot read a row.
    """
    columns = ", ".join(f"{name_of(name)}: {quoted(type_of(form))}" for name, form in COLUMNS.items())
    longest = max(min(rows.stat().st_size, 256 << 20), 1 << 20)
    waiting = target.with_name(f".new-{os.getpid()}-{target.name}")
    with tempfile.TemporaryDirectory(prefix="reroll-records-") as folder:
        connection = connect(Path(folder), max(memory, 256 << 20), threads)
        import duckdb

        try:
            connection.execute(
                f"COPY (SELECT * FROM read_json({literal(rows)}, format='newline_delimited', columns={{{columns}}}, "
                f"maximum_object_size={longest})) TO {quoted(str(waiting))} (FORMAT parquet, COMPRESSION zstd)"
            )
            waiting.replace(target)
        except duckdb.Error as error:
            raise StoreError(f"{rows} cannot be written as Parquet ({error}): leave --parquet out") from None
        finally:
            connection.close()
            waiting.unlink(missing_ok=True)
