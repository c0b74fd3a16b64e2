"""`reroll stop`: ends a run."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from reroll.cli.target import RunArgument, output_of

LOOK_SECONDS = 0.25


def stop(
    target: RunArgument,
    now: Annotated[bool, typer.Option("--now", help="Kill it; what was not in a checkpoint is lost.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end; 0 does not wait.")] = 600.0,
) -> None:
    """End a run: it finishes what it must, writes a checkpoint where it makes some, and is not started again."""
    from reroll.api import RerollError
    from reroll.launch.ending import ask_to_end
    from reroll.launch.standing import standing_of
    from reroll.plugins import installed_plugins

    output, plugins = output_of(target), installed_plugins()
    standing = standing_of(output, plugins)
    if standing.ended and not standing.alive:
        typer.echo(f"{output} has ended already: {standing.state}")
        return
    ask_to_end(output, plugins, now)
    until = time.monotonic() + timeout
    while (standing := standing_of(output, plugins)).alive or not standing.ended:
        if time.monotonic() >= until:
            if timeout:
                raise RerollError(
                    f"{output} is {standing.state} after {timeout:g} s; wait for it with `reroll status -f`, or kill "
                    "it with `reroll stop --now`"
                )
            typer.echo(f"{output} was asked to end")
            return
        time.sleep(LOOK_SECONDS)
    typer.echo(f"{output}: {standing.state}" + (f" ({standing.message})" if standing.message else ""))
