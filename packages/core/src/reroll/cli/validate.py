"""`reroll validate`: everything that can be checked without starting anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from reroll.cli.options import RunFileArgument, SetOption, load

if TYPE_CHECKING:
    from reroll.api import Problem
    from reroll.config import LoadedRunFile


def validate(run_file: RunFileArgument, set_: SetOption = None) -> None:
    """Check model files, tokenizer, template, every task and its targets, and plugin options. Starts nothing."""
    from reroll.api import RunFileError

    run = load(run_file, set_)
    problems = list(file_problems(run, thorough=True))
    if problems:
        raise RunFileError(problems)
    typer.echo(f"{run_file}: valid")


def file_problems(run: LoadedRunFile, thorough: bool) -> Iterator[Problem]:
    """Faults of the files that the run names; the first prompt is rendered as training would."""
    from reroll.api import Problem, RerollError

    found = [problem for section in run.sections.values() for problem in section.validate_files(run, thorough)]
    yield from map(run.locate, found)
    if found:
        return
    try:
        _render_first(run)
    except RerollError as error:
        yield run.locate(Problem("data.task_set", str(error)))


def _render_first(run: LoadedRunFile) -> None:
    from reroll.models.config import ModelSection
    from reroll.models.files import resolve_model
    from reroll.tasks.config import DataSection
    from reroll.tasks.render import Renderer

    template = run.get(ModelSection).chat_template
    files = resolve_model(run.get(ModelSection).path)
    renderer = Renderer(files, template.read_text("utf-8") if template else None)
    renderer.render(run.make("task_sets", run.get(DataSection).task_set).task(0))
