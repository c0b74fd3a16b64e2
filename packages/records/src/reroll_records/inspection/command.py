"""`reroll records inspect STORE [PROMPT]`: one prompt's history, or the prompts that deserve a look."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from reroll_records.api import RecordStore


class By(StrEnum):
    hardest = "hardest"
    unstable = "unstable"


def inspect(
    store: Annotated[Path, typer.Argument(help="Root of a store, or the folder of one lineage or run.")],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The beginning of an input key, a task key or a query hash; or source_dataset:row; or a prepared "
            "sample id. Without it, the hardest and the most unstable prompts."
        ),
    ] = None,
    responses: Annotated[
        int, typer.Option(min=0, help="Responses to show where texts were kept: the worst, the best, and so on.")
    ] = 0,
    by: Annotated[By | None, typer.Option(help="Only this table.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts in a table.")] = 20,
    min_responses: Annotated[
        int, typer.Option(min=1, help="Valid responses that a prompt needs; half of them on either side of a change.")
    ] = 16,
    domain: Annotated[str | None, typer.Option(help="Only prompts of these verifiers, as math+format.")] = None,
    lineage: Annotated[str | None, typer.Option(help="Only under this starting checkpoint.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show one prompt's history over runs, or the hardest and the most unstable prompts."""
    from reroll.api import RerollError
    from reroll_records.api import open_store
    from reroll_records.store.layout import StoreError
    from reroll_records.terminal import printable

    try:
        opened = open_store(store)
        if prompt is None:
            _rank(opened, by, as_json, lineage=lineage, domain=domain, min_responses=min_responses, limit=limit)
        else:
            _find(opened, prompt, lineage, responses, as_json)
    except StoreError as error:
        raise RerollError(printable(str(error))) from None
    if not as_json:
        for warning in opened.warnings:
            typer.echo(f"warning: {printable(warning)}", err=True)


def _rank(opened: RecordStore, by: By | None, as_json: bool, **options: Any) -> None:
    from reroll.api import RerollError
    from reroll_records.inspection.ranking import rank
    from reroll_records.terminal import printable

    ranking = rank(opened, **options)
    if not ranking.prompts and (
        wanted := [f"--{name} {options[name]}" for name in ("domain", "lineage") if options[name]]
    ):
        raise RerollError(
            f"no recorded prompt is of {printable(' and '.join(wanted))}; `summarize` lists what there is"
        )
    if as_json:
        _print_json(ranking.to_json(), opened)
        return
    from reroll_records.inspection.view import console, show_ranking

    show_ranking(console(), ranking, by and by.value, options["min_responses"])


def _find(opened: RecordStore, text: str, lineage: str | None, keep: int, as_json: bool) -> None:
    from dataclasses import asdict

    from reroll.api import RerollError
    from reroll_records.inspection.search import find
    from reroll_records.terminal import printable

    found = find(opened, text, lineage=lineage, keep=keep)
    if not found.matches:
        within = f" of lineage {printable(lineage)}" if lineage else ""
        raise RerollError(
            f"no recorded prompt{within} is {printable(text)}: give the beginning of an input key, a task key or a "
            "query hash, or source_dataset:row, or a prepared sample id"
        )
    if as_json:
        matches = [asdict(prompt) | {"groups": groups} for prompt, groups in found.matches.items()]
        history = found.history.to_json() if found.history else None
        _print_json({"matches": matches, "history": history}, opened)
        return
    from reroll_records.inspection.view import console, show_history, show_matches

    if found.history is None:
        show_matches(console(), found)
    else:
        show_history(console(), found.history)


def _print_json(content: dict[str, Any], opened: RecordStore) -> None:
    """In ASCII, so that no character of a text can steer a terminal."""
    import json

    typer.echo(json.dumps(content | {"warnings": opened.warnings}, indent=2))
