"""What `totals` keeps of rows, computed by DuckDB: of compacted attempts, and of JSON lines that have the exact form of
a writer. Of the extra `analysis`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reroll_records.aggregation.aggregate import Collected
from reroll_records.aggregation.spilling import Item, Key, SortedWriter, sort
from reroll_records.store.database import LEFT_AS, connect, quiet
from reroll_records.store.layout import StoreError
from reroll_records.store.rows import OUTCOMES
from reroll_records.store.sources import Source
from reroll_records.summary import totals
from reroll_records.summary.duck_rows import load

if TYPE_CHECKING:
    import duckdb

LEAST_MEMORY = 512 << 20
_BATCH = 4096

_PIECES = """
CREATE TABLE pieces AS
WITH siblings AS (
    SELECT place, attempt, unnest(responses) AS response, unnest(range(len(responses))) AS position
    FROM rows WHERE kind = 'group'
), flat AS (
    SELECT place, attempt, position, coalesce(response.policy_scope, '') AS scope, response.validity.valid AS valid,
        response.response_tokens AS tokens, response.truncated AS truncated,
        CASE WHEN response.reward = 0 THEN 0.0 ELSE response.reward END AS reward
    FROM siblings
)
SELECT place, scope, bool_or(position = 0) AS leads, count(*) AS responses, sum(tokens) AS tokens,
    count(*) FILTER (truncated) AS truncated, coalesce(sum(tokens) FILTER (truncated), 0) AS truncated_tokens,
    count(*) FILTER (valid) AS valid, count(*) FILTER (valid IS NULL) AS unknown,
    CASE WHEN min(reward) < max(reward) THEN 'mixed' WHEN count(reward) < count(*) THEN 'unscored'
        WHEN min(reward) = 0 THEN 'all_zero' ELSE 'constant' END AS outcome
FROM flat GROUP BY place, scope
UNION ALL
SELECT place, '', true, 0, 0, 0, 0, 0, 0, 'unscored' FROM rows WHERE kind = 'group' AND len(responses) = 0
"""

_OUTCOMES = ", ".join(f"count(*) FILTER (outcome = '{name}')" for name in OUTCOMES)
_PROMPTS = f"""
SELECT lineage, input_key, scope,
    task_key, query_sha256, prompt_token_sha256, protocol, verifiers, source_dataset, source_row, prepared_sample_id,
    attempt, {_OUTCOMES},
    count(*) FILTER (filter_decision = 'passed'), count(*) FILTER (filter_decision = 'filtered'),
    count(*) FILTER (filter_decision = 'aborted'),
    sum(valid), sum(pieces.responses - valid - unknown), sum(unknown), sum(pieces.responses), sum(tokens),
    sum(truncated)
FROM pieces JOIN rows USING (place) JOIN attempts USING (attempt)
GROUP BY ALL ORDER BY lineage, input_key, scope
"""

_REWARDS = """
SELECT lineage, input_key, scope, valid, reward, count(*)
FROM (
    SELECT attempt, input_key, coalesce(response.policy_scope, '') AS scope, response.validity.valid AS valid,
        CASE WHEN response.reward = 0 THEN 0.0 ELSE response.reward END AS reward
    FROM (SELECT attempt, input_key, unnest(responses) AS response FROM rows WHERE kind = 'group')
) JOIN attempts USING (attempt)
WHERE reward IS NOT NULL AND valid IS DISTINCT FROM false
GROUP BY ALL ORDER BY lineage, input_key, scope
"""

_DISPOSITIONS = """
CREATE TABLE dispositions AS
SELECT attempt, observation_id, min(disposition) AS disposition FROM rows WHERE kind = 'disposition'
GROUP BY attempt, observation_id
"""
"""The smaller of two prevails, see `rows.DispositionRow`."""

_TOKENS = f"""
SELECT verifiers, {LEFT_AS.format(disposition="dispositions.disposition")} AS left_as,
    count(*) FILTER (leads), sum(pieces.responses), sum(tokens), sum(truncated), sum(truncated_tokens)
FROM pieces JOIN rows USING (place)
    LEFT JOIN dispositions ON rows.attempt = dispositions.attempt AND filter_decision = 'passed'
        AND rows.observation_id = dispositions.observation_id
GROUP BY ALL
"""

_ORPHANS = """
SELECT attempt, count(*) FROM dispositions ANTI JOIN (SELECT attempt, observation_id FROM rows
    WHERE kind = 'group' AND filter_decision = 'passed') USING (attempt, observation_id)
GROUP BY attempt
"""


def aggregate_with_duckdb(
    sources: Sequence[Source], provenances: Sequence[totals.Provenance], folder: Path, threads: int, memory: int
) -> tuple[Collected, list[Source]]:
    """Partial results of the rows of `sources`, and the sources that were left to the other reader.

    Args:
        provenances: by the number of the attempt.
        folder: for what does not fit into memory, and the results.

    Raises:
        StoreError: DuckDB is not installed, or a compacted file cannot be read.
    """
    spilled = folder / "duckdb"
    spilled.mkdir()
    connection = connect(spilled, max(memory, LEAST_MEMORY), threads)
    import duckdb

    try:
        connection.execute("SET preserve_insertion_order = false")
        refused = load(connection, sources, provenances)
        collected = Collected()
        collected.rows.update(dict(connection.execute("SELECT attempt, count(*) FROM rows GROUP BY 1").fetchall()))
        for source in sources:
            if source.compacted:
                collected.unreadable[source.attempt] += source.unreadable
        with SortedWriter(folder / "duckdb-sorted") as writer:
            connection.execute(_PIECES)
            connection.execute(_DISPOSITIONS)
            for items in (_joined(_prompts(connection)), _joined(_rewards(connection)), _others(connection)):
                collected.files.append(writer.write(items))
    except duckdb.Error as error:
        raise StoreError(
            f"DuckDB could not summarize the store ({error}): give more memory, or another engine"
        ) from None
    finally:
        connection.close()
    return collected, refused


def _stream(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[Any, ...]]:
    found = quiet(connection.cursor()).execute(query)
    while batch := found.fetchmany(_BATCH):
        yield from batch


def _prompts(connection: duckdb.DuckDBPyConnection) -> Iterator[Item]:
    """Partial results without rewards, in order; a key comes again for each attempt, and where its prompts are known by
    different names."""
    for lineage, input_key, scope, *values in _stream(connection, _PROMPTS):
        task, query, tokens, protocol, verifiers, dataset, row, sample, attempt, *found = values
        identity = (task, query, tokens, protocol, tuple(sorted(verifiers)), dataset, row, sample)
        counts = list(map(int, found))
        units = 1 << attempt if counts[totals.VALID - totals.FIRST_OUTCOME] else 0
        yield ("prompt", lineage, input_key, scope), [identity, units, *counts, {}, {}]


def _rewards(connection: duckdb.DuckDBPyConnection) -> Iterator[Item]:
    """Partial results with rewards alone, in order."""
    for lineage, input_key, scope, valid, reward, count in _stream(connection, _REWARDS):
        histograms = ({reward: count}, {}) if valid else ({}, {reward: count})
        yield ("prompt", lineage, input_key, scope), [(), *[0] * (totals.VALID_REWARDS - 1), *histograms]


def _joined(items: Iterable[Item]) -> Iterator[Item]:
    """Neighbours of one key merged."""
    last: Item | None = None
    for key, value in items:
        if last is not None and last[0] == key:
            last = (key, totals.merge(key, last[1], value))
            continue
        if last is not None:
            yield last
        last = (key, value)
    if last is not None:
        yield last


def _others(connection: duckdb.DuckDBPyConnection) -> list[Item]:
    found: dict[Key, Any] = {}
    for verifiers, disposition, *counts in _stream(connection, _TOKENS):
        key: Key = ("tokens", tuple(sorted(verifiers)), disposition)
        value = list(map(int, counts))
        found[key] = totals.merge(key, found[key], value) if key in found else value
    for attempt, count in _stream(connection, _ORPHANS):
        found["orphans", attempt] = count
    return sort(found.items())
