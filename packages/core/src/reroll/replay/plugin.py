"""What the room registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reroll.api import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def reroll_commands() -> list[tuple[str, typer.Typer]]:
    from reroll.replay.command import app

    return [("replay", app)]
