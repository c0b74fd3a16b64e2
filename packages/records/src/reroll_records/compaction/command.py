"""`reroll records compact`: finished attempts of a store in Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reroll_records.compaction.compact import AttemptOutcome, Compaction


def compact(
    store: Annotated[
        Path, typer.Argument(help="A store of records, or the folder of a lineage or of a run.", metavar="STORE")
    ],
    delete_originals: Annotated[
        bool,
        typer.Option("--delete-originals", help="Delete JSON lines once all their rows were read back from Parquet."),
    ] = False,
    delete_unreadable: Annotated[
        bool,
        typer.Option(
            "--delete-unreadable",
            help="With --delete-originals: even where some lines are no rows, or the last one is incomplete; these "
            "are lost.",
        ),
    ] = False,
    idle: Annotated[
        float,
        typer.Option(min=0, help="Seconds since the last row after which an attempt is finished that was not closed."),
    ] = 3600.0,
    memory_mb: Annotated[int, typer.Option(min=64, help="Memory of DuckDB, in MiB.")] = 1024,
    threads: Annotated[int, typer.Option(min=1, help="Threads of DuckDB.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Copy finished attempts into Parquet, which every command reads as it reads their JSON lines."""
    import json
    import sys

    from reroll.api import RerollError
    from reroll_records.compaction.compact import Options
    from reroll_records.compaction.compact import compact as compact_store
    from reroll_records.store.layout import StoreError

    if delete_unreadable and not delete_originals:
        raise RerollError("--delete-unreadable: says which originals go besides; give --delete-originals too")
    options = Options(delete_originals, delete_unreadable, idle, memory_mb << 20, threads)

    def tell(outcome: AttemptOutcome) -> None:
        if not as_json and sys.stderr.isatty():
            typer.echo(f"{outcome.name}: {outcome.status}", err=True)

    try:
        found = compact_store(store, options, tell)
    except (StoreError, OSError) as error:
        raise RerollError(str(error)) from None
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if any(outcome.status == "failed" for outcome in found.outcomes):
        raise typer.Exit(1)


def _print(found: Compaction) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("attempt", overflow="fold")
    table.add_column("Parquet")
    for name in ("rows", "before", "after", ""):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("JSON lines")
    for outcome in found.outcomes:
        table.add_row(Text(outcome.name), outcome.status, *_figures(outcome), outcome.lines)
    console = Console()
    console.print(table)
    compacted = [outcome for outcome in found.outcomes if outcome.after is not None]
    before, after = sum(outcome.before for outcome in compacted), sum(outcome.after or 0 for outcome in compacted)
    if compacted:
        console.print(f"{len(compacted)} of {len(found.outcomes)} in Parquet: {_size(before)} → {_size(after)}")
    for line in [*_notes(found.outcomes), *found.warnings]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _figures(outcome: AttemptOutcome) -> list[str]:
    if outcome.after is None:
        return ["", _size(outcome.before), "", ""]
    share = f"{outcome.after / outcome.before:.1%}" if outcome.before else ""
    return [f"{outcome.rows:,}", _size(outcome.before), _size(outcome.after), share]


def _notes(outcomes: list[AttemptOutcome]) -> list[str]:
    """What is not in Parquet, and why."""
    notes = []
    for outcome in outcomes:
        if outcome.reason:
            notes.append(f"{outcome.name} {outcome.status}: {outcome.reason}")
        if outcome.not_compacted:
            number = outcome.not_compacted
            notes.append(
                f"{outcome.name}: {number} {'line is no row and is' if number == 1 else 'lines are no rows and are'} "
                "not in Parquet"
            )
        if outcome.kept_because:
            notes.append(f"{outcome.name} is kept: {outcome.kept_because}")
    return notes


def _size(number: int) -> str:
    """Bytes, with the unit in which they have up to three digits before the point."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
