"""Arguments that several commands share, and the loading that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reroll.config import LoadedRunFile

RunFileArgument = Annotated[Path, typer.Argument(help="The run file (TOML).", metavar="RUN.TOML")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key with a TOML value; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def load(path: Path, overrides: list[str] | None) -> LoadedRunFile:
    """The checked run file; RunFileError carries all its faults."""
    from reroll.config import load_run_file
    from reroll.plan import size_problems
    from reroll.plugins import installed_plugins

    return load_run_file(path, overrides or [], installed_plugins(), [size_problems])
