"""`reroll validate`: everything that can be checked without starting anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from reroll.cli.options import RunFileArgument, SetOption, load

if TYPE_CHECKING:
    from reroll.api import Problem, Selection, TaskSet
    from reroll.config import LoadedRunFile
    from reroll.tasks.render import Renderer


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


def file_problems(run: LoadedRunFile, thorough: bool, without: Collection[str] = ()) -> Iterator[Problem]:
    """Faults of the files that the run names. Prompts are rendered as the run would: all of them if `thorough`,
    else the first of each set. Sections in `without` are not asked."""
    from reroll.api import Problem, RerollError

    asked = [section for name, section in run.sections.items() if name not in without]
    found = [problem for section in asked for problem in section.validate_files(run, thorough)]
    yield from map(run.locate, found)
    if any(problem.key.startswith("model.") for problem in found):
        return  # nothing can be rendered
    renderer = _renderer(run)
    for item in _prompt_sets(run):
        section = item.key.partition(".")[0]
        if section in without or any(problem.key.startswith(f"{section}.") for problem in found):
            continue
        try:
            lengths = item.lengths(run, renderer, most=None if thorough else 1)
        except RerollError as error:
            yield run.locate(Problem(item.key, str(error)))
            continue
        if thorough and lengths is not None and not lengths.kept:
            yield run.locate(Problem(lengths.key, lengths.note))


class PromptLengths(NamedTuple):
    """Tokens of the prompts of one task set, and how many may stay."""

    key: str
    lengths: list[int]
    limit: int
    limited_by: str
    """The key that says the limit."""

    @property
    def kept(self) -> int:
        return sum(length <= self.limit for length in self.lengths)

    @property
    def note(self) -> str:
        total = len(self.lengths)
        if not total:
            return "has no task that can be dispatched"
        return (
            f"{total - self.kept} of {total} prompts have more than {self.limit} tokens and are skipped; the longest "
            f"has {max(self.lengths)}: raise {self.limited_by}"
        )


class PromptSet(NamedTuple):
    """A training or evaluation set: its key, the tokens that its prompts may have, and what runs its conversations."""

    key: str
    selection: Selection
    limit: int
    limited_by: str
    harness: Selection

    def lengths(self, run: LoadedRunFile, renderer: Renderer, most: int | None = None) -> PromptLengths | None:
        """Renders the first `most` prompts; of a streaming set the first, and None of one that only a run fills.
        TaskError where tasks offer tools that the model cannot call."""
        from reroll.tasks.config import data_seed, open_task_set

        tasks = open_task_set(run, self.selection, None, data_seed(run))
        if tasks.online:
            return None
        try:
            size = len(tasks)
        except TypeError:
            size = 1
        lengths: list[int] = []
        harness: Any = run.component("harnesses", self.harness.name)
        for index in range(size if most is None else min(size, most)):
            found = _length(renderer, tasks, index, harness.calls_tools)
            lengths += [] if found is None else [found]
        return PromptLengths(self.key, lengths, self.limit, self.limited_by)


def _length(renderer: Renderer, tasks: TaskSet, index: int, calls_tools: bool) -> int | None:
    """Tokens of a task's prompt; None where the run would pass it over."""
    from reroll.api import TaskError
    from reroll.tasks.config import bound_task

    try:
        task = bound_task(tasks, index)
        length = len(renderer.render(task).token_ids)
    except TaskError:
        if not tasks.lazy:
            raise
        return None
    if task.tools and calls_tools:
        renderer.call_format()
    return length


def prompt_lengths(run: LoadedRunFile) -> Iterator[PromptLengths]:
    """Of every set that there is before the run."""
    renderer = _renderer(run)
    for item in _prompt_sets(run):
        if (found := item.lengths(run, renderer)) is not None:
            yield found


def _prompt_sets(run: LoadedRunFile) -> Iterator[PromptSet]:
    from reroll.plan import source_limits
    from reroll.rollouts.config import EvalSection, RolloutSection
    from reroll.tasks.config import DataSection

    rollout, data = run.get(RolloutSection), run.get(DataSection)
    common = "rollout.rollout_max_prompt_len"
    for (key, selection), source in zip(data.task_sets(), data.all_sources(), strict=True):
        limit, own = source_limits(run, source).max_prompt_len, key.removesuffix("task_set") + "max_prompt_len"
        limited_by = own if data.sources else common
        yield PromptSet(key, selection, limit, limited_by, source.harness or rollout.harness)
    for index, item in enumerate(run.get(EvalSection).sets):
        limit = item.max_prompt_len or rollout.rollout_max_prompt_len
        limited_by = f"eval.sets[{index}].max_prompt_len" if item.max_prompt_len else common
        key, harness = f"eval.sets[{index}].task_set", item.harness or rollout.harness
        yield PromptSet(key, item.task_set, limit, limited_by, harness)


def _renderer(run: LoadedRunFile) -> Renderer:
    from reroll.models.config import ModelSection
    from reroll.models.files import resolve_model
    from reroll.tasks.render import Renderer

    section = run.get(ModelSection)
    return Renderer(resolve_model(section.path), section.chat_template_text())
