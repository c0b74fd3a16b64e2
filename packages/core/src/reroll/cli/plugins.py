"""`reroll plugins`: what is installed, what it gives, and what is wrong with it."""

from __future__ import annotations

import json

import typer

from reroll.cli.options import JsonOption


def plugins(json_: JsonOption = False) -> None:
    """List plugins: name, distribution, version, hooks, error. Exit code 1 if one failed."""
    from reroll.plugins import installed_plugins

    manager = installed_plugins()
    records, conflicts = manager.ask_all(), manager.conflicts()
    if json_:
        listed = {"plugins": [record.to_json() for record in records], "conflicts": conflicts}
        typer.echo(json.dumps(listed, indent=2))
    else:
        for record in records:
            typer.echo(f"{record.name}  ({record.distribution} {record.version})")
            for hook, names in record.hooks.items():
                if names:
                    typer.echo(f"    {hook}: {', '.join(names)}")
            if record.error:
                typer.echo(f"    error: {record.error}")
        for conflict in conflicts:
            typer.echo(f"conflict: {conflict}")
    if conflicts or any(record.error for record in records):
        raise typer.Exit(1)
