"""What a store says: prompts, tokens, and the summary of both. The standard library alone, except for compacted
attempts, which DuckDB reads."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from reroll_records.aggregation import spilling
from reroll_records.aggregation.aggregate import Collected, aggregate, parts
from reroll_records.aggregation.workers import cores, in_processes
from reroll_records.store import identity
from reroll_records.store.database import require_duckdb
from reroll_records.store.layout import Attempt, Store, StoreError, scan
from reroll_records.store.rows import OUTCOMES, SCHEMA
from reroll_records.store.sources import Snapshot, beside_compaction, hashed, snapshot
from reroll_records.summary import totals
from reroll_records.summary.prompt_rows import Written, run_numbers, write_rows

PROMPTS, TOKENS, SUMMARY = "prompts.jsonl", "tokens.json", "summary.json"
PARQUET = "prompts.parquet"
FILES = (PROMPTS, TOKENS, SUMMARY, PARQUET)
_WAITING = ".new-"
MEMORY = 640 << 20
"""Bytes of partial results by default; with their processes and what sorting takes it stays below a gigabyte."""
Engine = Literal["auto", "standard", "duckdb"]
_BLOCKS_THAT_PAY = 64
"""Blocks of keys above which other processes pay for writing rows."""


def summarize(
    store_path: Path,
    output: Path,
    engine: Engine = "auto",
    processes: int | None = None,
    memory: int = MEMORY,
) -> dict[str, Any]:
    """Write `prompts.jsonl`, `tokens.json` and `summary.json` into `output`; what is in the store when it begins.

    Args:
        store_path: the store's root, or the folder of one lineage or run.
        output: a folder, made if need be; what an earlier summary wrote there is replaced.
        engine: `standard` reads JSON lines in Python processes, `duckdb` reads what it can with DuckDB; their files
            are equal byte for byte. Compacted attempts need DuckDB. `auto` reads each as is fastest: JSON lines in
            Python, compacted attempts with DuckDB.
        processes: that read and write; by default as many as there are cores.
        memory: bytes that partial results may take, all processes together; beyond it they spill to a temporary folder
            (`TMPDIR`).

    Returns:
        The contents of `summary.json`.

    Raises:
        StoreError: there is no store, the output cannot be used, or DuckDB is needed and missing.
    """
    check_output(store_path, output)
    return beside_compaction(lambda: _summarized(store_path, output, engine, processes or cores(), memory))


def _summarized(store_path: Path, output: Path, engine: Engine, processes: int, memory: int) -> dict[str, Any]:
    store = scan(store_path)
    taken = snapshot(store)
    if engine == "duckdb" or any(source.compacted for source in taken.sources):
        require_duckdb()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"--output {output}: {error.strerror or error}; give a folder that can be made") from None
    with tempfile.TemporaryDirectory(prefix="reroll-records-") as temporary:
        folder = Path(temporary)
        collected = _collect(taken, folder, engine, processes, memory)
        with _new_summary(output) as new:
            written = _write_prompts(collected, store, folder, new / PROMPTS, processes)
            summary = _summary(taken, collected, written, processes)
            token_rows = list(_token_rows(written))
            (new / TOKENS).write_text(_text({"schema": SCHEMA, "rows": token_rows}), encoding="utf-8")
            (new / SUMMARY).write_text(_text(summary), encoding="utf-8")
    return summary


@contextmanager
def _new_summary(output: Path) -> Iterator[Path]:
    """A folder for the files, which take the place of an earlier summary's when all of them are written. While they do,
    there is no `summary.json`: files that do not belong together are not taken for a summary."""
    with tempfile.TemporaryDirectory(prefix=_WAITING, dir=output) as name:
        yield Path(name)
        for old in (SUMMARY, PARQUET):
            (output / old).unlink(missing_ok=True)
        for file in (PROMPTS, TOKENS, SUMMARY):
            (Path(name) / file).replace(output / file)


def write_parquet(output: Path, processes: int | None = None, memory: int = MEMORY) -> Path:
    """`prompts.parquet` beside the `prompts.jsonl` of a summary, with the same rows.

    Raises:
        StoreError: DuckDB is not installed.
    """
    from reroll_records.summary.parquet import write_prompts

    write_prompts(output / PROMPTS, output / PARQUET, processes or cores(), memory)
    return output / PARQUET


def check_output(store_path: Path, output: Path) -> None:
    """Raises:
    StoreError: the folder is in the store, or holds something else than an earlier summary.
    """
    if output.resolve().is_relative_to(store_path.resolve()):
        raise StoreError(f"the output {output} is in the store {store_path}: give a folder outside of it")
    if output.exists() and not output.is_dir():
        raise StoreError(f"the output {output} is no folder: give another one")
    there = sorted(file.name for file in output.iterdir()) if output.exists() else []
    others = [name for name in there if name not in FILES and not name.startswith(_WAITING)]
    if others:
        raise StoreError(f"the output {output} holds {others[0]}, which is of no summary: give a new or empty folder")


def _collect(taken: Snapshot, folder: Path, engine: Engine, processes: int, memory: int) -> Collected:
    known = totals.provenances(taken.store)
    make = partial(totals.Totals, known)
    compacted = [source for source in taken.sources if source.compacted]
    lines = [source for source in taken.sources if not source.compacted]
    if compacted and engine == "standard":
        raise StoreError(
            f"{taken.store.name(compacted[0].path)} is compacted, and only DuckDB reads it: leave --engine standard out"
        )
    if engine == "duckdb" or compacted:
        from reroll_records.summary.duck_aggregate import aggregate_with_duckdb

        asked = taken.sources if engine == "duckdb" else compacted
        collected, refused = aggregate_with_duckdb(asked, known, folder, processes, memory)
        lines = refused if engine == "duckdb" else lines
    else:
        collected = Collected()
    collected.add(aggregate(parts(lines), make, totals.merge, folder, processes, memory))
    return collected


def _write_prompts(collected: Collected, store: Store, folder: Path, path: Path, processes: int) -> Written:
    """`prompts.jsonl`; where there are many prompts, each process writes the rows of a range of keys."""
    blocks = sum(len(run.firsts) for run in collected.files)
    ranges = spilling.boundaries(collected.files, processes if blocks > _BLOCKS_THAT_PAY else 1)
    pieces = [folder / f"prompts-{number}" for number in range(len(ranges))]
    numbers = run_numbers(store)
    calls = [(collected.files, low, high, numbers, piece) for (low, high), piece in zip(ranges, pieces, strict=True)]
    written = Written()
    for each in in_processes(write_rows, calls, processes):
        written.update(each)
    with path.open("wb") as file:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, file, 1 << 20)
            piece.unlink()
    return written


def _token_rows(written: Written) -> Iterator[dict[str, Any]]:
    for (domain, disposition), counts in sorted(written.tokens.items()):
        groups, responses, tokens, truncated_responses, truncated_tokens = counts
        yield {
            "domain": identity.domain(domain),
            "verifiers": list(domain),
            "disposition": disposition,
            "groups": groups,
            "responses": responses,
            "tokens": tokens,
            "truncated_responses": truncated_responses,
            "truncated_tokens": truncated_tokens,
        }


def _summary(taken: Snapshot, collected: Collected, written: Written, processes: int) -> dict[str, Any]:
    attempts = taken.store.attempts
    sums = [sum(column) for column in zip(*written.tokens.values(), strict=True)] or [0] * 5
    groups, responses, tokens, truncated_responses, truncated_tokens = sums
    return {
        "schema": SCHEMA,
        "inputs": hashed(taken.inputs, processes),
        "lineages": list(_lineages(attempts)),
        "protocols": list(_protocols(attempts)),
        "domains": list(_domains(written)),
        "counts": {
            "runs": len({attempt.run_id for attempt in attempts}),
            "attempts": len(attempts),
            "groups": groups,
            "dispositions": collected.rows.total() - groups,
            "prompt_rows": written.rows,
            "responses": responses,
            "tokens": tokens,
            "truncated_responses": truncated_responses,
            "truncated_tokens": truncated_tokens,
            "unreadable_lines": collected.unreadable.total(),
        },
        "warnings": [*taken.warnings, *_found_warnings(taken, collected.unreadable, written.orphans)],
    }


def _domains(written: Written) -> Iterator[dict[str, Any]]:
    for domain, (rows, *groups) in sorted(written.domains.items()):
        yield {
            "domain": identity.domain(domain),
            "verifiers": list(domain),
            "prompt_rows": rows,
            "groups": dict(zip(OUTCOMES, groups, strict=True)),
        }


def _found_warnings(taken: Snapshot, unreadable: Mapping[int, int], orphans: Mapping[int, int]) -> Iterator[str]:
    for source in taken.sources:
        if number := unreadable.get(source.attempt):
            what = "line is no row" if number == 1 else "lines are no rows"
            yield f"{source.name}: {number} complete {what} of schema {SCHEMA}, counted nowhere else"
        if number := orphans.get(source.attempt):
            what = "disposition is" if number == 1 else "dispositions are"
            yield f"{source.name}: {number} {what} of no group row that passed the filter"


def _lineages(attempts: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
    for name in sorted({attempt.lineage for attempt in attempts}):
        mine = [attempt for attempt in attempts if attempt.lineage == name]
        first = mine[0].manifest["lineage"]
        yield {
            "id": name,
            **{field: first.get(field) for field in ("sha256", "basis", "weights_hashed", "model")},
            "runs": len({attempt.run_id for attempt in mine}),
            "attempts": len(mine),
        }


def _protocols(attempts: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
    for digest in sorted({attempt.protocol_digest for attempt in attempts}):
        mine = [attempt for attempt in attempts if attempt.protocol_digest == digest]
        counted = Counter(attempt.lineage for attempt in mine)
        yield {"digest": digest, "protocol": mine[0].protocol, "attempts_by_lineage": dict(sorted(counted.items()))}


def _text(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1) + "\n"
