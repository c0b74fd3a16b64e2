"""`reroll plan`: what a run file resolves to. Starts nothing."""

from __future__ import annotations

import json
from typing import Any

import typer

from reroll.cli.options import JsonOption, RunFileArgument, SetOption, load


def plan(run_file: RunFileArgument, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Show what a run file resolves to: sizes, lengths, placement, plugins. Starts nothing."""
    from reroll.plan import make_plan

    made = make_plan(load(run_file, set_))
    if json_:
        typer.echo(json.dumps(made, indent=2))
        return
    for name, value in made.items():
        if name not in ("settings", "explicit"):
            typer.echo(_shown(name, value))
    typer.echo("settings (* given, the others are defaults)")
    explicit = set(made["explicit"])
    for section, keys in made["settings"].items():
        for key, value in keys.items():
            mark = "*" if f"{section}.{key}" in explicit else " "
            typer.echo(f"  {mark} {section}.{key} = {'(unset)' if value is None else json.dumps(value)}")


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
    lines = [f"{name}"]
    width = max(len(key) for key in value)
    for key, item in value.items():
        shown = ", ".join(f"{k} {v}" for k, v in item.items()) if isinstance(item, dict) else item
        lines.append(f"  {key:<{width}}  {shown}")
    return "\n".join(lines)
