"""The run that a command is about: its folder, or its run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    Path,
    typer.Argument(
        help="The run's folder, or its run file: then output.dir, or the newest run of its name.", metavar="RUN"
    ),
]


def output_of(target: Path) -> Path:
    """The run's folder, absolute; RerollError says what is missing."""
    from reroll.api import RerollError
    from reroll.config.toml import read_toml
    from reroll.launch.folder import was_submitted
    from reroll.launch.outputs import OUTPUTS, folders_of

    if target.is_dir():
        return target.absolute()
    if not target.exists():
        raise RerollError(f"{target} is not there: give the folder of a run, or its run file")
    table, _ = read_toml(target)
    output, run = table.get("output", {}), table.get("run", {})
    if isinstance(output, dict) and isinstance(given := output.get("dir"), str):
        return Path(given).absolute()
    name = run.get("name", "run") if isinstance(run, dict) else "run"
    for folder in folders_of(str(name)):
        if was_submitted(folder):
            return folder.absolute()
    raise RerollError(f"{target} names no output.dir, and {OUTPUTS} holds no run {name!r}: give the run's folder")
