"""`reroll generate`: attempts with frozen weights, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from reroll.cli import generate_results
from reroll.cli.options import JsonOption, RunFileArgument, SetOption

if TYPE_CHECKING:
    from reroll.config import LoadedRunFile

NOT_ASKED = frozenset({"output", "launch", "checkpoint", "eval", "trackers", "trainer", "objective", "async"})
"""Sections of the run file that a generation does nothing with."""


class GenerateGroup(TyperGroup):
    """`reroll generate run.toml` beside `reroll generate merge …`: what names no command is a run file."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=GenerateGroup, no_args_is_help=True)
for command in (generate_results.index, generate_results.merge, generate_results.export, generate_results.clean):
    app.command()(command)


@app.command()
def run(
    run_file: RunFileArgument,
    set_: SetOption = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only every Nth task, from the Ith on; I counts from 1.")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help='With placement.backend = "ray": run N shards on the cluster\'s nodes, and merge them.',
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and start nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Attempt every task n_trials times with frozen weights, and write pass rates, transcripts and an index. The same
    command goes on where it was stopped. `run` may be left out."""
    import asyncio

    from reroll.api import RunFileError
    from reroll.cli.validate import file_problems
    from reroll.generation.program import run_generation
    from reroll.workers.together import leaving_nothing

    part = _shard(shard)
    loaded = _load(run_file, set_)
    if shards is not None:
        _check_shards(loaded, part)
    if problems := list(file_problems(loaded, thorough=False, without=NOT_ASKED)):
        raise RunFileError(problems)
    if dry_run:
        _tell(loaded, part, json_)
        return
    if shards is not None:
        _run_shards(loaded, shards)
        return
    raise typer.Exit(asyncio.run(leaving_nothing(run_generation(loaded, part))))


def _check_shards(run: LoadedRunFile, shard: tuple[int, int] | None) -> None:
    if shard is not None:
        raise typer.BadParameter("is given beside --shard, which runs one of them here", param_hint="--shards")
    if run.value("placement.backend").name != "ray":
        raise typer.BadParameter(
            'needs placement.backend = "ray"; without a cluster start `--shard I/N` on each machine, or on one machine '
            "raise serving.num_engines",
            param_hint="--shards",
        )


def _run_shards(run: LoadedRunFile, shards: int) -> None:
    """On a cluster, from the first shard to the merged index; what is finished already is not run again."""
    import asyncio
    import sys

    from reroll.generation.bands import Band
    from reroll.generation.index_file import require_parquet
    from reroll.generation.program import index_path, results_folder
    from reroll.generation.protocol import FILE as PROTOCOL
    from reroll.workers.together import leaving_nothing

    index = index_path(run, None)
    require_parquet(f"generation.output_index = {str(index)!r}")

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    from reroll.generation.on_ray import run_shards

    failed = asyncio.run(leaving_nothing(run_shards(run, shards, tell)))
    folders = [results_folder(run, (number, shards)) for number in range(1, shards + 1)]
    there = [folder for folder in folders if (folder / PROTOCOL).exists()]
    if there:
        generate_results.merge(there, index, str(Band.parse(run.value("generation.band"))))
    if failed:
        tell(f"error: {len(failed)} of {shards} shards failed; the same command goes on with them")
        raise typer.Exit(1)


def _tell(run: LoadedRunFile, shard: tuple[int, int] | None, as_json: bool) -> None:
    import json

    from reroll.generation import dry_run

    found = dry_run.dry_run(run, shard)
    typer.echo(json.dumps(found, indent=2) if as_json else dry_run.as_text(found))


def _load(path: RunFileArgument, overrides: list[str] | None) -> LoadedRunFile:
    from reroll.config import load_run_file
    from reroll.plan import context_problems
    from reroll.plugins import installed_plugins

    return load_run_file(path, overrides or [], installed_plugins(), [context_problems])


def _shard(text: str | None) -> tuple[int, int] | None:
    """Which shard, and of how many."""
    if text is None:
        return None
    number, separator, of = text.partition("/")
    if not (separator and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise typer.BadParameter(f"{text!r} is no shard: give I/N with I from 1 to N, as 1/3", param_hint="--shard")
    return int(number), int(of)
