"""`reroll generate index|merge|export|clean`: what is made of results that are there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reroll.generation.bands import Band
    from reroll.generation.merging import Merged

FoldersArgument = Annotated[
    list[Path],
    typer.Argument(
        help="A results folder, those of shards in any order, or one that holds shards'.",
        metavar="DIR...",
        show_default=False,
    ),
]
IndexOption = Annotated[
    Path, typer.Option("--output", "-o", help="The index to write (.parquet).", metavar="INDEX", show_default=False)
]
BandOption = Annotated[
    str, typer.Option(help="Pass rates that the index takes: (0, 1) leaves 0 and 1 out, [0.25, 0.75] takes both ends.")
]


class Outcome(StrEnum):
    passed = "passed"
    failed = "failed"
    judged = "judged"


class Traces(StrEnum):
    all = "all"
    failed = "failed"
    errors = "errors"


def index(results: FoldersArgument, output: IndexOption, band: BandOption = "(0, 1)") -> None:
    """Write an index of the tasks whose pass rates are in a band, from results that are there."""
    chosen = _checked(output, band)
    merged = _merged(results)
    from reroll.api import counted
    from reroll.generation.index_file import write_index

    count = write_index(output, merged.tally.tasks(), chosen, merged.protocol)
    typer.echo(f"{output}: {counted(count, 'task')} with a pass rate in {chosen}")


def merge(
    results: FoldersArgument,
    output: IndexOption,
    band: BandOption = "(0, 1)",
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Write nothing, and end with exit code 1, where any is missing.")
    ] = False,
) -> None:
    """Count the results of shards as one: write the index, and beside it the summary and its picture."""
    chosen = _checked(output, band)
    merged = _merged(results)
    if require_complete and not merged.complete:
        typer.echo(f"error: not complete; {output} is not written", err=True)
        raise typer.Exit(1)
    from rich.console import Console

    from reroll.generation.outputs import Outputs, conclude
    from reroll.generation.summary_view import show

    outputs = Outputs.beside(output)
    folders = [folder.path for folder in merged.folders]
    show(conclude(merged.tally, merged.protocol, chosen, outputs, folders), Console())
    for path in (outputs.index, outputs.table, outputs.summary, outputs.picture):
        typer.echo(path)


def export(
    results: FoldersArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The file to write: .jsonl or .parquet.", metavar="FILE", show_default=False
        ),
    ],
    outcome: Annotated[
        Outcome, typer.Option(help="Attempts to take; judged: those that passed and those that failed.")
    ] = Outcome.passed,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Of equal conversations of a task take the first alone.")
    ] = False,
    most_per_task: Annotated[
        int | None, typer.Option(min=1, help="Take so many conversations of a task at most, the first ones.")
    ] = None,
    keep_truncated: Annotated[
        bool, typer.Option("--keep-truncated", help="Take answers as well that were cut off at a length limit.")
    ] = False,
) -> None:
    """Write conversations for supervised training.

    A row has messages, tools, the three pointers to its task, trial, reward, sampled tokens, model and run. In Parquet,
    tool calls, tools and what else a message holds are JSON text; reroll.generation.corpus_files.messages_of reads it.
    """
    from reroll.generation.corpus import Choice
    from reroll.generation.corpus import export as write
    from reroll.generation.corpus_files import SUFFIXES

    if output.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{str(output)!r} is neither .jsonl nor .parquet", param_hint="'--output'")
    if output.suffix == ".parquet":
        from reroll.generation.index_file import require_parquet

        require_parquet(f"--output {output}")
    from reroll.api import counted
    from reroll.generation.merging import results_folders

    choice = Choice(outcome.value, keep_truncated, deduplicate, most_per_task)
    done = write(results_folders(results), output, choice, _warn)
    for line in done.lines():
        _warn(line)
    typer.echo(f"{output}: {counted(done.conversations, 'conversation')} of {counted(done.tasks, 'task')}")


def clean(
    results: FoldersArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be freed, and remove nothing.")] = False,
    drop_traces: Annotated[
        Traces | None, typer.Option(help="Remove these traces as well. What the attempts came to stays.")
    ] = None,
) -> None:
    """Make results folders small: logs, what a kill left half written, and traces that do not count are removed.

    What a resume needs stays. A folder that a run is using is refused.
    """
    from reroll.generation.cleanup import clean as make_small
    from reroll.generation.merging import each_folder

    for folder in each_folder(results):
        freed = make_small(folder, drop_traces.value if drop_traces else None, dry_run, _warn)
        typer.echo(f"{folder.path}: {'would free' if dry_run else 'freed'} {freed}")


def _checked(output: Path, band: str) -> Band:
    """The band; misuse ends before results are read."""
    from reroll.generation.bands import Band
    from reroll.generation.index_file import require_parquet

    if output.suffix != ".parquet":
        raise typer.BadParameter(f"{str(output)!r}: an index is a .parquet file", param_hint="'--output'")
    require_parquet(f"--output {output}")
    try:
        return Band.parse(band)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--band'") from None


def _merged(results: Sequence[Path]) -> Merged:
    """What the folders hold together, and on standard error what is missing."""
    from reroll.generation.merging import merge as count
    from reroll.generation.merging import results_folders

    merged = count(results_folders(results), _warn)
    for line in merged.lines():
        _warn(line)
    return merged


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)
