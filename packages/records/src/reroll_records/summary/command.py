"""`reroll records summarize`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineName(StrEnum):
    auto = "auto"
    standard = "standard"
    duckdb = "duckdb"


def summarize(
    store: Annotated[
        Path, typer.Argument(help="The store's root, or the folder of one lineage or run.", metavar="STORE")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write: new, empty, or an earlier summary's.")
    ],
    engine: Annotated[
        EngineName,
        typer.Option(help="`standard` reads JSON lines in Python processes, `duckdb` with DuckDB: equal to the byte."),
    ] = EngineName.auto,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write prompts.parquet too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of tables.")] = False,
    memory: Annotated[int, typer.Option(min=1, help="MiB that partial results may take before they spill.")] = 640,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes that read; by default one a core.")] = None,
) -> None:
    """Pool a store's rewards by prompt, count its tokens by what became of them, and say what was read."""
    import json

    from reroll.api import RerollError
    from reroll_records.store.database import require_duckdb
    from reroll_records.store.layout import StoreError
    from reroll_records.summary.summarize import summarize as write_summary
    from reroll_records.summary.summarize import write_parquet
    from reroll_records.summary.tables import show

    try:
        if parquet:
            require_duckdb()
        summary = write_summary(store, output, engine.value, processes, memory << 20)
        if parquet:
            write_parquet(output, processes, memory << 20)
    except (StoreError, OSError) as error:
        raise RerollError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(summary, indent=1))
    else:
        show(summary, output)
