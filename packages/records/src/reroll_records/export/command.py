"""`reroll records export STORE --to DIR`: a store as a Hugging Face data set."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class RowKind(StrEnum):
    responses = "responses"
    groups = "groups"


class Scope(StrEnum):
    start_checkpoint = "start_checkpoint"
    run_version = "run_version"
    mixed = "mixed"


def export(
    store: Annotated[Path, typer.Argument(help="Root of a store, or the folder of one lineage or run.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="New folder, for `datasets.load_dataset(DIR)`.")],
    rows: Annotated[
        RowKind, typer.Option(help="What a row of the data set is; that of a group nests its responses.")
    ] = RowKind.responses,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="Only responses of this policy scope; repeatable. Without it all of them."),
    ] = None,
    valid_only: Annotated[
        bool, typer.Option("--valid-only", help="Only responses of which every verifier vouches for its score.")
    ] = False,
    lineage: Annotated[str | None, typer.Option(help="Only of this starting checkpoint.")] = None,
) -> None:
    """Write a store as a Hugging Face data set: Parquet files and a data card."""
    from reroll.api import RerollError
    from reroll_records.api import open_store
    from reroll_records.export.dataset import Choice, write_dataset
    from reroll_records.store.layout import StoreError
    from reroll_records.terminal import printable

    try:
        opened = open_store(store)
        choice = Choice(rows.value, tuple(item.value for item in scope or ()), valid_only, lineage)
        facts = write_dataset(opened, to.resolve(), choice)
    except StoreError as error:
        raise RerollError(printable(str(error))) from None
    for warning in opened.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    typer.echo(
        f"{facts.rows} {rows.value} in {facts.shards} Parquet file{'s' * (facts.shards != 1)}: {printable(str(to))}"
    )
