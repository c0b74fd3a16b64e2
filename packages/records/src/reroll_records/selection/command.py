"""`reroll records select`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def select(
    store: Annotated[Path, typer.Argument(help="The store's root, or the folder of one lineage.", metavar="STORE")],
    skip: Annotated[
        list[str],
        typer.Option(
            metavar="RULE",
            help="all_zero, all_full (every reward is --full-reward) or zero_variance (every reward is the same); "
            "repeatable.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table's file; an existing one is never changed.")],
    lineage: Annotated[
        str | None, typer.Option(help="Which starting checkpoint; needed where the store holds several.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Which protocol digest; needed where the lineage holds several.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="Evidence that counts: start_checkpoint (the default); adding run_version or mixed marks the table "
            "approximate_policy. Repeatable.",
        ),
    ] = None,
    full_reward: Annotated[float, typer.Option(help="The reward of all_full.")] = 1.0,
    min_observations: Annotated[int, typer.Option(help="Valid responses that a prompt needs.")] = 16,
    min_units: Annotated[int, typer.Option(help="Independent attempts that a prompt needs.")] = 2,
    confidence: Annotated[float, typer.Option(help="Of the upper bound.")] = 0.95,
    max_deviation_rate: Annotated[
        float, typer.Option(help="Exclude only if the upper bound on the rate of any other reward is below it.")
    ] = 0.2,
    readmit_fraction: Annotated[float, typer.Option(help="Share of the excluded prompts that are kept anyway.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Which ones these are.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Build a frozen table of prompts whose recorded reward is constant."""
    import json

    from reroll.api import RerollError
    from reroll_records.selection.selecting import Rule, write_table
    from reroll_records.selection.selecting import select as build
    from reroll_records.store.layout import StoreError
    from reroll_records.terminal import printable

    try:
        rule = Rule(
            skip=tuple(dict.fromkeys(skip)),  # type: ignore[arg-type]
            scopes=tuple(dict.fromkeys(scope or ["start_checkpoint"])),  # type: ignore[arg-type]
            full_reward=full_reward,
            min_observations=min_observations,
            min_units=min_units,
            confidence=confidence,
            max_deviation_rate=max_deviation_rate,
            readmit_fraction=readmit_fraction,
            seed=seed,
        )
        built = build(store, rule, lineage, protocol)
        write_table(output, built)
    except StoreError as error:
        raise RerollError(printable(str(error), lines=True)) from None
    if as_json:
        told = {"table": str(output.resolve()), "sha256": built.sha256, "domains": built.content["domains"]}
        typer.echo(json.dumps({**told, "warnings": built.warnings}, indent=2))
    else:
        _tell(output, built)


def _tell(output: Path, built: Any) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    from reroll_records.selection.selecting import KEPT
    from reroll_records.terminal import printable

    for warning in built.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    domains = built.content["domains"]
    table = Table("prompts", *map(printable, domains), title="Prompts with evidence, by domain", title_justify="left")
    for name in ("prompts", "excluded", "readmitted", *KEPT):
        table.add_row(name.replace("_", " "), *(f"{counts[name]:,}" for counts in domains.values()))
    Console(highlight=False, markup=False).print(table)
    if built.content["approximate_policy"]:
        typer.echo("approximate_policy: evidence of later weight versions belongs to the trajectories of their runs")
    typer.echo(f"SHA-256: {built.sha256}\n")
    typer.echo(f"[selection]\ntable = {json.dumps(str(output.resolve()))}\nsha256 = {json.dumps(built.sha256)}")
