"""`reroll plan --from-miles`: a file of MILES as a run file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reroll.api import Problem
    from reroll.miles.draft import Note

FromMilesOption = Annotated[
    bool,
    typer.Option(
        "--from-miles",
        help="RUN.TOML is a file of MILES, or a shell script that starts it: print it as a run file, and on stderr "
        "what it does not say, and why `plan` would refuse it. `--set` is in MILES's names. Exits with 1 where `plan` "
        "would refuse it, or where a control that is refused or unknown was left out; it is printed all the same.",
    ),
]


def print_translation(path: Path, overrides: Sequence[str], as_json: bool) -> None:
    """The run file on stdout, what it does not say on stderr; with `as_json` both as data on stdout. RunFileError
    carries the faults of the file that is read. Exits with 1 where the run file is refused, or is of another run."""
    from reroll.api import RunFileError
    from reroll.miles.check import refusals
    from reroll.miles.source import read_source
    from reroll.miles.translate import translate
    from reroll.miles.written import run_file

    source = read_source(path, overrides)
    made = translate(source.given)
    if made.faults:
        raise RunFileError(map(source.located, made.faults))
    notes = [*source.notes, *made.notes]
    refused = [source.located(problem) for problem in refusals(made, source.given)]
    text = run_file(made.table, made.comments, notes, refused)
    if as_json:
        found = [note.to_json() for note in notes]
        faults = [problem.to_json() for problem in refused]
        data = {"run_file": made.table, "text": text, "notes": found, "refused_by_plan": faults}
        typer.echo(json.dumps(data, indent=2, default=str))
    else:
        typer.echo(text, nl=False)
        _tell(notes, refused)
    if refused or any(note.changes_the_run for note in notes):
        raise typer.Exit(1)


def _tell(notes: Sequence[Note], refused: Sequence[Problem]) -> None:
    from reroll.miles.written import REFUSED, by_kind

    if refused:
        typer.echo(REFUSED, err=True)
    for problem in refused:
        typer.echo(f"  {problem}", err=True)
    for title, told in by_kind(notes):
        typer.echo(title, err=True)
        for note in told:
            typer.echo(f"  {note.about}: {note.text}", err=True)
