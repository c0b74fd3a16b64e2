"""`reroll plan`: what a run file resolves to. Starts nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reroll.cli.from_miles import FromMilesOption, print_translation
from reroll.cli.options import JsonOption, RunFileArgument, SetOption, load

if TYPE_CHECKING:
    from reroll.config import LoadedRunFile

DECIDES = {
    "trainer_device": 'decided by the machine (trainer.device = "auto")',
    "trainer_gpus": 'decided by the machine (trainer.device = "auto")',
    "gpus": "decided when it runs",
    "engine_gpus": "decided by the engine",
}
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def plan(
    run_file: RunFileArgument,
    set_: SetOption = None,
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff",
            metavar="OTHER.TOML",
            help="Show only what differs from another run file. --set applies to RUN.TOML alone.",
        ),
    ] = None,
    json_: JsonOption = False,
    from_miles: FromMilesOption = False,
) -> None:
    """Show what a run file resolves to: sizes, lengths, placement, servers, memory, plugins. Starts nothing."""
    from reroll.api import RerollError

    if from_miles:
        if diff is not None:
            raise RerollError(
                f"--diff {diff} does nothing beside --from-miles, which translates and compares nothing: write the "
                "translation into a file, and give that one to `reroll plan --diff`"
            )
        return print_translation(run_file, set_ or [], json_)
    from reroll.planning.report import make_plan

    loaded = load(run_file, set_)
    if diff is not None:
        _show_difference(loaded, load(diff, None), json_)
        return
    made = make_plan(loaded)
    if json_:
        typer.echo(json.dumps(made, indent=2))
        return
    for name, value in made.items():
        if name in ("explicit", "defaults"):
            _show_settings(name, value)
        elif name == "servers":
            _show_servers(value)
        elif name == "memory":
            for device, found in value.items():
                _show_memory(device, found)
        elif name not in ("runtime_validated", "not_checked"):
            typer.echo(_shown(name, value))
    typer.echo(f"not validated at run time: {made['not_checked']}")


def _show_difference(here: LoadedRunFile, there: LoadedRunFile, as_json: bool) -> None:
    from reroll.planning.comparison import compare

    found = compare(here, there)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
        return
    if not (found.settings or found.derived):
        typer.echo("nothing differs")
    for item in found.settings:
        typer.echo(f"{item.key}")
        for side, setting in (("here", item.here), ("there", item.there)):
            if setting is None:
                typer.echo(f"  {side:<5}  no such key")
            else:
                value = "(unset)" if setting.value is None else json.dumps(setting.value)
                typer.echo(f"  {side:<5}  {value}{'' if setting.given else '  (default)'}")
    for figure in found.derived:
        typer.echo(f"→ {figure.key}: {_figure(figure.here)} here, {_figure(figure.there)} there")


def _figure(value: Any) -> str:
    if value is None:
        return "not known"
    return shlex.join(map(str, value)) if isinstance(value, list) and value else json.dumps(value)


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
    lines = [name]
    width = max((len(key) for key in value), default=0)
    for key, item in value.items():
        shown = ", ".join(f"{k} {v}" for k, v in item.items()) if isinstance(item, dict) else item
        lines.append(f"  {key:<{width}}  {DECIDES.get(key, 'none') if shown is None else shown}")
    return "\n".join(lines)


def _show_settings(name: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
    typer.echo({"explicit": "given by the file or --set", "defaults": "defaults"}[name])
    for section, keys in sections.items():
        for key, value in keys.items():
            typer.echo(f"  {section}.{key} = {'(unset)' if value is None else json.dumps(value)}")


def _show_servers(value: Mapping[str, Any]) -> None:
    typer.echo("servers")
    if value["argv"]:
        typer.echo(f"  {value['launched']} of {shlex.join(value['argv'])}")
        typer.echo(f"  each told: {shlex.join(value['told'])}")
    elif value["worker"] is not None:
        given = ", ".join(f"{key}={item!r}" for key, item in value["worker"].items() if item is not None)
        typer.echo(f"  no server is launched; one worker an engine, started with {given}")
    else:
        typer.echo("  none is launched")
    for key, item in value["environment"].items():
        typer.echo(f"  with {key}={item}")


def _show_memory(device: str, found: Mapping[str, Any]) -> None:
    typer.echo(f"memory of one {device.replace('_', ' ')}")
    for key, value in found.items():
        if key == "because":
            continue
        if key == "total":
            shown = "not known as a whole" if value is None else amount(value)
        else:
            shown = found["because"].get(key, "decided by the engine") if value is None else amount(value)
        typer.echo(f"  {key:<16}  {shown}")


def amount(number: int) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for unit, size in UNITS:
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
