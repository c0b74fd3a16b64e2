"""`reroll replay inspect DIR`: what a replay buffer would offer of a run's rollouts. Importing it does no work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reroll.replay.inspection import Inspection

app = typer.Typer(
    help="Saved rollouts as sources of new tasks.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def replay() -> None:
    """Saved rollouts as sources of new tasks."""


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or one that holds step_N/.")],
    derivation: Annotated[
        str | None, typer.Option(help="The one to show a prompt of; by default the first that offers something.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the derivation, with a TOML value; repeatable."),
    ] = None,
    source_envs: Annotated[
        list[str] | None,
        typer.Option("--source-env", metavar="NAME", help="A data source to take rollouts of; repeatable."),
    ] = None,
    online: Annotated[
        bool, typer.Option(help="Only steps that are marked as whole, as an online buffer does.")
    ] = False,
    capacity: Annotated[int, typer.Option(min=1, help="Most candidates.")] = 4096,
    index: Annotated[int, typer.Option(min=0, help="The candidate whose prompt is shown.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List what saved rollouts offer to each derivation, and show one derived prompt."""
    import json as json_format

    from reroll.config.toml import parse_option
    from reroll.replay.inspection import Wanted, inspect_folder

    options = dict(map(parse_option, option or []))
    wanted = Wanted(folder, derivation, options, source_envs or None, online, capacity, index)
    found = inspect_folder(wanted, lambda text: typer.echo(f"warning: {_printable(text)}", err=True))
    if json:
        typer.echo(json_format.dumps(found.to_json(), ensure_ascii=True))
    else:
        _print(found)


def _print(found: Inspection) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    counts = found.counts
    console.print(
        Text(
            f"{counts.lines} rollouts of the newest steps ({counts.steps}): {counts.usable} usable, {counts.derived} "
            "of them derived themselves" + (", which --source-env takes as well" if counts.derived else "")
        )
    )
    sources = Table("data source", "usable rollouts", "mean reward")
    for name, number, reward in found.sources:
        sources.add_row(Text(_printable(name) or "(not said)"), str(number), _number(reward))
    console.print(sources)
    derivations = Table("derivation", "candidates", "offered", "mean source reward")
    for item in found.derivations:
        derivations.add_row(Text(item.name), str(item.candidates), str(item.offered), _number(item.mean_reward))
    console.print(derivations)
    if found.prompt is None:
        console.print(Text(found.why_no_prompt))
        return
    shown = found.prompt
    console.print(Text(f"\n{shown.derivation}, candidate {shown.index}: {_printable(shown.where)}", style="bold"))
    for message in shown.messages:
        console.print(Text(f"[{_printable(str(message.get('role')))}]", style="bold"))
        if content := message.get("content"):
            console.print(Text(_printable(content if isinstance(content, str) else repr(content))))
        for call in message.get("tool_calls") or ():
            console.print(Text(_printable(f"  → {call['function']['name']}({call['function']['arguments']})")))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _printable(text: str) -> str:
    """Rollouts hold what a model said, which may be more than text to a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )
