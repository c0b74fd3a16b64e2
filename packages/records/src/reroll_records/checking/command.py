"""`reroll records check FILE STORE`: whether a store still holds what a table or a summary was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    file: Annotated[Path, typer.Argument(help="A selection table, or the summary.json of a summary.", metavar="FILE")],
    store: Annotated[
        Path, typer.Argument(help="Root of a store, or the folder of one lineage or run.", metavar="STORE")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Tell which inputs of a selection table or a summary are gone from a store, or differ there."""
    import json

    from reroll.api import RerollError
    from reroll_records.store.layout import StoreError, scan
    from reroll_records.store.snapshot import changed, recorded_inputs
    from reroll_records.terminal import printable

    try:
        inputs = recorded_inputs(file)
        found = changed(scan(store), inputs)
    except (StoreError, OSError) as error:
        raise RerollError(printable(str(error))) from None
    if as_json:
        told = [{"path": recorded.path, "reason": reason} for recorded, reason in found]
        typer.echo(json.dumps({"inputs": len(inputs), "changed": told}, indent=2))
    else:
        for recorded, reason in found:
            typer.echo(printable(f"{recorded.path} {reason}"))
        whole = len(inputs) - len(found)
        typer.echo(f"{whole} of {len(inputs)} inputs are as they were when {printable(str(file))} was made of them")
    if found:
        raise typer.Exit(1)
