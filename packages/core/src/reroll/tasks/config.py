"""`[data]`: which tasks, in which order, judged by what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
    counted,
)
from reroll.config.problems import nearest
from reroll.config.run import RunSection
from reroll.tasks.installed import InstalledTools
from reroll.tasks.targets import UnlistedVerifiers, target_fault, unjudgeable, unready
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
    verifier_weights: dict[str, float] = {}
    """Weights of scores in the rewards of its tasks; those that are not given are `data.verifier_weights`."""


class DataSection(ConfigSection):
    section: ClassVar[str] = "data"

    task_set: Annotated[Selection | None, Hook("task_sets")] = None
    """The training tasks: `addition` (the default), `multiplication`, `{ name = "file", path = "prompts.jsonl" }`, or a
    plugin's."""
    manifest: Path | None = None
    """Instead of `task_set`: the `manifest.json` of a data set that `reroll data prepare` made; its split `train` is
    trained on. Stands for `task_set = { name = "manifest", path = … }`."""
    sources: list[DataSource] = []
    """Instead of `task_set`: several sources that are mixed, each `[[data.sources]]`."""
    tools: Annotated[list[Selection], Hook("tools")] = []
    """Options of tools that tasks offer; one that is not listed has its defaults."""
    verifiers: Annotated[list[Selection], Hook("verifiers")] = []
    """What judges answers; every verifier that a task's targets name must be listed, with its options."""
    verifier_weights: dict[str, float] = {}
    """Verifier name → weight of its score in the reward; 1.0 where not given."""
    prompt_filters: Annotated[list[Selection], Hook("prompt_filters")] = []
    """What skips prompts before they are generated from; a skipped one costs no generation and is counted."""
    seed: int | None = None
    """Order of the tasks: another seed shuffles them otherwise; by default `run.seed`."""
    shuffle: bool = True
    """False keeps the set's own order."""
    epochs: int | None = Field(None, gt=0)
    """Passes over the task set; by default as many as `rollout.num_rollout` needs."""

    @model_validator(mode="before")
    @classmethod
    def _task_set(cls, values: Any) -> Any:
        """Something has to be trained on."""
        if isinstance(values, dict) and not values.get("sources"):
            if isinstance(manifest := values.get("manifest"), str | Path):
                return {"task_set": {"name": MANIFEST, "path": str(Path(manifest))}, **values}
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
        for key, weights in self._given_weights():
            for name in weights:
                if name not in names:
                    remedy = nearest(name, names) if names else "add it there"
                    yield Problem(f"{key}.{name}", "weighs a verifier that data.verifiers does not list", remedy)
        for index, source in enumerate(self.sources):
            own = self.weights(source)
            if source.verifier_weights and names and not any(weight > 0 for weight in own.values()):
                key = f"data.sources[{index}].verifier_weights"
                yield Problem(key, "gives no verifier a positive weight: no answer would be right")

    def _given_weights(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Dotted key and table."""
        yield "data.verifier_weights", self.verifier_weights
        for index, source in enumerate(self.sources):
            yield f"data.sources[{index}].verifier_weights", source.verifier_weights

    def _source_problems(self, run: RunFile) -> Iterator[Problem]:
        if self.sources and self.task_set is not None:
            yield Problem(
                "data.task_set", "is given beside data.sources", "make it one of the sources, or leave it out"
            )
        if self.manifest is not None:
            yield from self._manifest_problems()
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

    def _manifest_problems(self) -> Iterator[Problem]:
        """The key stands for a task set, which a resolved run file may write beside it."""
        given = self.task_set if self.task_set is not None and self.task_set.name == MANIFEST else None
        if self.sources:
            remedy = 'make it one of the sources: task_set = { name = "manifest", path = … }'
            yield Problem("data.manifest", "is given beside data.sources", remedy)
        elif given is None or {"split": "train", **given.options} != {"split": "train", "path": str(self.manifest)}:
            yield Problem("data.manifest", "is given beside data.task_set", "leave one of them out")

    def task_sets(self) -> Iterator[tuple[str, Selection]]:
        """Dotted key and selection of every training task set."""
        if self.task_set is not None:
            yield "data.manifest" if self.manifest is not None else "data.task_set", self.task_set
        for index, source in enumerate(self.sources):
            yield f"data.sources[{index}].task_set", source.task_set

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        for index, item in enumerate(self.verifiers):
            if lacks := unready(run.make("verifiers", item)):
                yield Problem(f"data.verifiers[{index}]", lacks)
        asked = NamedVerifiers()
        for (key, selection), source in zip(self.task_sets(), self.all_sources(), strict=True):
            here = NamedVerifiers()
            yield from check_task_set(key, selection, self, run, thorough, asked=here)
            own = key.removesuffix("task_set") + "verifier_weights"
            if source.verifier_weights and here.own_verifiers:
                yield Problem(own, "does nothing: the task set brings its own verifiers and weights", "leave it out")
            elif source.verifier_weights:
                yield from here.idle(own, source.verifier_weights)
            asked.add(here)
        if self.verifier_weights and asked.complete:
            for item in run.value("eval.sets"):
                for _ in check_task_set("eval", item.task_set, self, run, thorough=False, asked=asked):
                    pass  # told by [eval] itself
            yield from asked.idle("data.verifier_weights", self.verifier_weights)

    def weights(self, source: DataSource | None = None) -> dict[str, float]:
        """Weight of every listed verifier, for tasks of the source."""
        given = self.verifier_weights | (source.verifier_weights if source else {})
        return {item.name: given.get(item.name, 1.0) for item in self.verifiers}


@dataclass
class NamedVerifiers:
    """Verifiers that tasks name.

    Attributes:
        complete: every task was looked at.
        own_verifiers: the tasks are judged by verifiers that their set brings along.
    """

    names: set[str] = field(default_factory=set)
    complete: bool = True
    own_verifiers: bool = False

    def add(self, other: NamedVerifiers) -> None:
        self.names |= other.names
        self.complete = self.complete and other.complete

    def idle(self, key: str, weights: Mapping[str, float]) -> Iterator[Problem]:
        """Weights of verifiers that no task names."""
        if self.complete:
            for name in sorted(set(weights) - self.names):
                yield Problem(f"{key}.{name}", "weighs a verifier that no task's targets name", "leave it out")


MANIFEST = "manifest"
"""The task set that `data.manifest` stands for."""
REMEDY = "correct the row, or drop it"
"""Of a target that can never be judged."""
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
    key: str,
    selection: Selection,
    data: DataSection,
    run: RunFile,
    thorough: bool,
    sized: bool = False,
    asked: NamedVerifiers | None = None,
) -> Iterator[Problem]:
    """Reads every task of a sized set; are its targets for known verifiers, can they be judged, are its tools there?
    Of a lazy set, which passes over what is of no use, one task is enough.

    Args:
        thorough: ask verifiers about every target instead of the first `SAMPLE`.
        sized: refuse a streaming set.
        asked: is told which verifiers the tasks name.
    """
    warned: list[str] = []
    asked = asked or NamedVerifiers()
    complete, asked.complete = asked.complete, False
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
    asked.own_verifiers = own is not None
    for judge in (own or {}).values():
        if lacks := unready(judge.verifier):
            yield Problem(key, lacks)
    if size is None:
        if sized:
            yield Problem(key, f"{selection.name!r} is streaming and never ends", "give a set with a size")
        return
    toolbox = Toolbox(InstalledTools(run, data.tools))
    faults, passed_over, usable = 0, "", False
    unlisted = UnlistedVerifiers(judges, by_task_set=own is not None)
    rows = SAMPLE if tasks.lazy else ROWS
    for index in range(size if thorough else min(size, rows)):
        try:
            task = bound_task(tasks, index)
            toolbox.of(task)
        except TaskError as error:
            if tasks.lazy:
                passed_over = passed_over or str(error)
                continue
            reason, remedy = str(error), ""
        except Exception as error:  # a task set is anybody's code
            reason, remedy = str(error), ""
        else:
            usable = True
            asked.names |= task.targets.keys()
            where = f"{_place(tasks, index)}task {task.key}"
            unlisted.note(task.targets, where)
            fault = _first_fault(task.targets, judges) if thorough or index < SAMPLE else None
            reason, remedy = (f"{where}: {fault}", REMEDY) if fault else ("", "")
        if reason:
            faults += 1
            if faults <= 10:
                yield Problem(key, reason, remedy)
    yield from unlisted.problems(key)
    whole = not tasks.lazy and own is None and (thorough or size <= rows)
    asked.complete = complete and whole and not faults and not unlisted.found
    if faults > 10:
        more = counted(faults - 10, "more task")
        yield Problem(key, f"{more} {'has' if faults == 11 else 'have'} faults")
    if passed_over and not usable:
        yield Problem(key, f"nothing of it can be dispatched: {'; '.join(warned[:SHOWN]) or passed_over}")


def _place(tasks: TaskSet, index: int) -> str:
    """File and row, counted from 1, of a set that is read from a file."""
    path = None if tasks.lazy else getattr(tasks, "data_file", getattr(tasks.config, "path", None))
    return f"{path}:{index + 1}: " if isinstance(path, Path) else ""


def _size(tasks: TaskSet) -> int | None:
    """Number of tasks, None for a streaming set."""
    try:
        return len(tasks)
    except TypeError:
        return None


def _first_fault(targets: Mapping[str, Any], judges: Mapping[str, Verifier]) -> str | None:
    for name, target in targets.items():
        if name in judges and (why := unjudgeable(judges[name], target)):
            return target_fault(name, target, why)
    return None
