"""`reroll train`: one run, from start to summary."""

from __future__ import annotations

import time

import typer

from reroll.cli.options import RunFileArgument, SetOption, load


def train(run_file: RunFileArgument, set_: SetOption = None) -> None:
    """Train: generate, score, filter, train, publish, evaluate. Ctrl-C ends it cleanly."""
    import asyncio

    from reroll.api import RunFileError
    from reroll.cli.validate import file_problems
    from reroll.launch.config import idle_in_a_new_folder
    from reroll.runner import run_training
    from reroll.training.trainer import require_training_extra
    from reroll.workers.together import leaving_nothing

    began = time.perf_counter()
    run = load(run_file, set_)
    require_training_extra()
    problems = [*map(run.locate, idle_in_a_new_folder(run)), *file_problems(run, thorough=False)]
    if problems:
        raise RunFileError(problems)
    raise typer.Exit(asyncio.run(leaving_nothing(run_training(run, began))))
