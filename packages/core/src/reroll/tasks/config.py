"""`[data]`: which tasks, in which order, judged by what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from reroll.api import (
    Config,
    ConfigSection,
    Hook,
    Problem,
    RunFile,
    Selection,
    Task,
    TaskError,
    TaskSet,
    Verifier,
)
from reroll.config.run import RunSection
from reroll.tasks.installed import InstalledTools
from reroll.tasks.toolbox import Toolbox


class DataSource(Config):
    """One `[[data.sources]]`: tasks that are mixed with those of other sources."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the source in metrics and in saved rollouts."""
    task_set: Annotated[Selection, Hook("task_sets")]
    """The tasks."""
    ratio: float | None = Field(None, ge=1e-9, le=1e9)
    """Its share of the dispatched prompts, relative to the other sources' ratios; all sources have one, or none.
    Without them, every task of every source is as frequent as any other."""
    max_prompt_len: int | None = Field(None, gt=0)
    """Longer prompts are skipped, and counted; by default `rollout.rollout_max_prompt_len`."""
    max_response_len: int | None = Field(None, gt=0)
    """Most tokens of a response, of one turn where there are several; by default `rollout.rollout_max_response_len`."""
    max_total_tokens: Annotated[int, Field(gt=1)] | Literal["None"] | None = None
    """Most tokens of a conversation, prompt included; by default the sequence length that the trainer takes
    (`trainer.max_sequence_length`, or else the context of `rollout`). "None" leaves the bound to the model's
    positions."""
    max_concurrent: int | None = Field(None, gt=0)
    """Most groups of the source in flight; by default no bound of its own."""
    harness: Annotated[Selection | None, Hook("harnesses")] = None
    """How its tasks become conversations; by default `rollout.harness`, or for replayed rollouts their own harness."""


class DataSection(ConfigSection):
    section: ClassVar[str] = "data"

    task_set: Annotated[Selection | None, Hook("task_sets")] = None
    """The training tasks: `addition` (the default), `multiplication`, `{ name = "file", path = "prompts.jsonl" }`, or a
    plugin's."""
    sources: list[DataSource] = []
    """Instead of `task_set`: several sources that are mixed, each `[[data.sources]]`."""
    tools: Annotated[list[Selection], Hook("tools")] = []
    """Options of tools that tasks offer; one that is not listed has its defaults."""
    verifiers: Annotated[list[Selection], Hook("verifiers")] = []
    """What judges answers; every verifier that a task's targets name must be listed, with its options."""
    verifier_weights: dict[str, float] = {}
    """Verifier name → weight of its score in the reward; 1.0 where not given."""
    prompt_filters: Annotated[list[Selection], Hook("prompt_filters")] = []
    """What skips prompts before they are generated from."""
    seed: int | None = None
    """Order of the tasks; by default `run.seed`."""
    shuffle: bool = True
    """False keeps the set's own order."""
    epochs: int | None = Field(None, gt=0)
    """Passes over the task set; by default as many as `rollout.num_rollout` needs."""

    @model_validator(mode="before")
    @classmethod
    def _task_set(cls, values: Any) -> Any:
        """Something has to be trained on."""
        if isinstance(values, dict) and not values.get("sources"):
            return {"task_set": "addition", **values}
        return values

    def all_sources(self) -> list[DataSource]:
        """The listed sources, or `task_set` as the only one, under its own name."""
        if self.task_set is None:
            return self.sources
        return [DataSource.model_construct(name=self.task_set.name, task_set=self.task_set)]

    def problems(self, run: RunFile) -> Iterator[Problem]:
        yield from self._source_problems(run)
        names = [item.name for item in self.verifiers]
        if not names:
            yield Problem("data.verifiers", "names no verifier: nothing would be rewarded", 'e.g. verifiers = ["math"]')
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("data.verifiers", f"names {name!r} twice")
        if names and not any(weight > 0 for weight in self.weights().values()):
            yield Problem("data.verifier_weights", "gives no verifier a positive weight: no answer would be right")
        for name in self.verifier_weights:
            if name not in names:
                yield Problem(f"data.verifier_weights.{name}", "weighs a verifier that data.verifiers does not list")

    def _source_problems(self, run: RunFile) -> Iterator[Problem]:
        if self.sources and self.task_set is not None:
            yield Problem(
                "data.task_set", "is given beside data.sources", "make it one of the sources, or leave it out"
            )
        names = [source.name for source in self.sources]
        for index, source in enumerate(self.sources):
            if names.index(source.name) != index:
                yield Problem(f"data.sources[{index}].name", f"{source.name!r} is the name of another source as well")
        for index, source in enumerate(self.sources):
            if source.ratio is None and run.make("task_sets", source.task_set).online:
                yield Problem(
                    f"data.sources[{index}].ratio",
                    f"is not given, and the tasks of {source.name!r} come to be while the run goes on: its share "
                    "cannot follow from its size",
                    "give every source a ratio",
                )
        without = [source.name for source in self.sources if source.ratio is None]
        if without and len(without) < len(self.sources):
            yield Problem(
                "data.sources",
                f"{', '.join(without)} has no ratio, and others have one",
                "give all of them one, or none",
            )
        listed = [item.name for item in self.tools]
        for name in sorted({name for name in listed if listed.count(name) > 1}):
            yield Problem("data.tools", f"names {name!r} twice")
        for key, selection in self.task_sets():
            yield from task_set_problems(key, selection, run)

    def task_sets(self) -> Iterator[tuple[str, Selection]]:
        """Dotted key and selection of every training task set."""
        if self.task_set is not None:
            yield "data.task_set", self.task_set
        for index, source in enumerate(self.sources):
            yield f"data.sources[{index}].task_set", source.task_set

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        for key, selection in self.task_sets():
            yield from check_task_set(key, selection, self, run, thorough)

    def weights(self) -> dict[str, float]:
        """Weight of every listed verifier."""
        return {item.name: self.verifier_weights.get(item.name, 1.0) for item in self.verifiers}


ROWS = 100_000
"""Tasks that are read before a run starts; `reroll validate` reads all of them."""
SHOWN = 3
"""Warnings of a set of which nothing can be dispatched that its problem repeats."""
SAMPLE = 500
"""Tasks whose targets are tried before a run starts; `reroll validate` tries all of them."""


def data_seed(run: RunFile) -> int:
    """`data.seed`, or where it is not given `run.seed`."""
    given = run.get(DataSection).seed
    return run.get(RunSection).seed if given is None else given


def open_task_set(
    run: RunFile,
    selection: Selection,
    output: Path | None,
    seed: int,
    warn: Callable[[str], None] = lambda text: None,
) -> TaskSet:
    """The selected set, ready to give tasks; see `TaskSet.open` for the arguments."""
    tasks = cast(TaskSet, run.make("task_sets", selection))
    tasks.warn = warn
    tasks.open(run, output, seed)
    return tasks


def task_set_problems(key: str, selection: Selection, run: RunFile) -> Iterator[Problem]:
    """Faults of a selected set that show without reading it."""
    cls = cast(type[TaskSet], run.component("task_sets", selection.name))
    yield from cls.problems(cls.Config(**selection.options), run, key)


def bound_task(tasks: TaskSet, index: int) -> Task:
    """The task at `index`; of a lazy set, what it stands for."""
    task = tasks.task(index)
    if not tasks.lazy:
        return task
    found = tasks.bind(task, 0)
    if found is None:
        raise TaskError(f"task set {tasks.name!r} has nothing for task {index}")
    return found.task


def check_task_set(
    key: str, selection: Selection, data: DataSection, run: RunFile, thorough: bool, sized: bool = False
) -> Iterator[Problem]:
    """Reads every task of a sized set; are its targets for known verifiers, can they be judged, are its tools there?
    Of a lazy set, which passes over what is of no use, one task is enough.

    Args:
        thorough: ask verifiers about every target instead of the first `SAMPLE`.
        sized: refuse a streaming set.
    """
    warned: list[str] = []
    try:
        tasks = open_task_set(run, selection, None, data_seed(run), warned.append)
        if tasks.online:
            return  # there is nothing to read before the run
        size = _size(tasks)
    except Exception as error:  # a task set is anybody's code
        yield Problem(key, f"{selection.name!r} cannot be opened: {error}")
        return
    own = tasks.judges()
    judges: dict[str, Verifier] = (
        {item.name: run.make("verifiers", item) for item in data.verifiers}
        if own is None
        else {name: judge.verifier for name, judge in own.items()}
    )
    if size is None:
        if sized:
            yield Problem(key, f"{selection.name!r} is streaming and never ends", "give a set with a size")
        return
    toolbox = Toolbox(InstalledTools(run, data.tools))
    faults, passed_over, usable = 0, "", False
    rows = SAMPLE if tasks.lazy else ROWS
    for index in range(size if thorough else min(size, rows)):
        try:
            task = bound_task(tasks, index)
            toolbox.of(task)
        except TaskError as error:
            if tasks.lazy:
                passed_over = passed_over or str(error)
                continue
            reason: str | None = str(error)
        except Exception as error:  # a task set is anybody's code
            reason = str(error)
        else:
            usable = True
            reason = _unjudgeable(task.targets, judges, ask=thorough or index < SAMPLE)
            reason = reason and f"task {task.key}: {reason}"
        if reason:
            faults += 1
            if faults <= 10:
                yield Problem(key, reason)
    if faults > 10:
        yield Problem(key, f"{faults - 10} more tasks have faults")
    if passed_over and not usable:
        yield Problem(key, f"nothing of it can be dispatched: {'; '.join(warned[:SHOWN]) or passed_over}")


def _size(tasks: TaskSet) -> int | None:
    """Number of tasks, None for a streaming set."""
    try:
        return len(tasks)
    except TypeError:
        return None


def _unjudgeable(targets: Mapping[str, Any], judges: Mapping[str, Verifier], ask: bool) -> str | None:
    for name, target in targets.items():
        if name not in judges:
            return f"its targets name the verifier {name!r}, which data.verifiers does not list"
        if ask and (why := judges[name].check_target(target)):
            return f"target {target!r} of {name!r} can never be judged: {why}"
    return None
