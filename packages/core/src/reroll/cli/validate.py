"""`reroll validate`: everything that can be checked without starting anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import typer

from reroll.cli.options import RunFileArgument, SetOption, load

if TYPE_CHECKING:
    from reroll.api import Problem
    from reroll.config import LoadedRunFile


def validate(run_file: RunFileArgument, set_: SetOption = None) -> None:
    """Check model files, tokenizer, template, every task and its targets, and plugin options. Starts no run."""
    from reroll.api import RunFileError

    run = load(run_file, set_)
    problems = list(file_problems(run, thorough=True))
    if problems:
        raise RunFileError(problems)
    for found in prompt_lengths(run):
        if found.kept < len(found.lengths):
            typer.echo(f"note: {found.key}: {found.note}")
    typer.echo(f"{run_file}: valid")


def file_problems(run: LoadedRunFile, thorough: bool) -> Iterator[Problem]:
    """Faults of the files that the run names. Prompts are rendered as the run would: all of them if `thorough`,
    else the first of each set."""
    from reroll.api import Problem, RerollError

    found = [problem for section in run.sections.values() for problem in section.validate_files(run, thorough)]
    yield from map(run.locate, found)
    if found:
        return
    key = "data.task_set"
    try:
        for lengths in prompt_lengths(run, most=None if thorough else 1):
            key = lengths.key
            if thorough and not lengths.kept:
                yield run.locate(Problem(key, lengths.note))
    except RerollError as error:
        yield run.locate(Problem(key, str(error)))


class PromptLengths(NamedTuple):
    """Tokens of the prompts of one task set, and how many may stay."""

    key: str
    lengths: list[int]
    limit: int

    @property
    def kept(self) -> int:
        return sum(length <= self.limit for length in self.lengths)

    @property
    def note(self) -> str:
        total = len(self.lengths)
        return (
            f"{total - self.kept} of {total} prompts have more than {self.limit} tokens and are skipped; the longest "
            f"has {max(self.lengths)}: raise rollout.rollout_max_prompt_len"
        )


def prompt_lengths(run: LoadedRunFile, most: int | None = None) -> Iterator[PromptLengths]:
    """Renders the first `most` prompts of the training set and of each evaluation set; of a streaming set the first."""
    from reroll.models.config import ModelSection
    from reroll.models.files import resolve_model
    from reroll.rollouts.config import EvalSection, RolloutSection
    from reroll.tasks.config import DataSection
    from reroll.tasks.render import Renderer

    template, rollout = run.get(ModelSection).chat_template, run.get(RolloutSection)
    files = resolve_model(run.get(ModelSection).path)
    renderer = Renderer(files, template.read_text("utf-8") if template else None)
    sets = [("data.task_set", run.get(DataSection).task_set, rollout.rollout_max_prompt_len)]
    for index, item in enumerate(run.get(EvalSection).sets):
        limit = item.max_prompt_len or rollout.rollout_max_prompt_len
        sets.append((f"eval.sets[{index}].task_set", item.task_set, limit))
    for key, selection, limit in sets:
        tasks = run.make("task_sets", selection)
        try:
            size = len(tasks)
        except TypeError:
            size = 1
        wanted = size if most is None else min(size, most)
        yield PromptLengths(key, [len(renderer.render(tasks.task(i)).token_ids) for i in range(wanted)], limit)
