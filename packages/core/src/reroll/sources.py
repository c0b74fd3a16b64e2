"""A run's data sources and evaluation sets, put together from its run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reroll.api import PromptFilter, RerollError, Selection, TaskSet
from reroll.config import LoadedRunFile
from reroll.models.files import ModelFiles
from reroll.plan import source_limits
from reroll.rollouts.config import EvalSection, RolloutSection, seeds
from reroll.rollouts.evaluation import Evaluator
from reroll.rollouts.groups import GroupMaker, GroupPlan, Judging
from reroll.rollouts.scoring.scorer import SelectedVerifier
from reroll.tasks.config import DataSection, DataSource, open_task_set
from reroll.tasks.cursor import Cursor
from reroll.tasks.mixture import Mixture, Source
from reroll.tasks.render import Renderer


class TaskSets:
    """The opened task sets of a run, by the names of their data sources and evaluation sets, and who judges them.

    A data source and an evaluation set may have one name: what follows from a name is kept apart.

    Args:
        output: the run's folder; None where no run is started.
        evaluation: evaluation sets are opened as well.

    Attributes:
        verifiers: all that are to be asked: the run's, and those that task sets bring along, under names of their own
            where another one has the name.
        judging_training, judging_evaluation: by name, what a task set brings along; None for the run's own.
    """

    def __init__(
        self, run: LoadedRunFile, output: Path | None, warn: Callable[[str], None], evaluation: bool = True
    ) -> None:
        _, seed, _ = seeds(run)
        data = run.get(DataSection)
        self.training = {
            source.name: open_task_set(run, source.task_set, output, seed, warn) for source in data.all_sources()
        }
        self.evaluation = {
            item.name: open_task_set(run, item.task_set, output, seed, warn)
            for item in (run.get(EvalSection).sets if evaluation else ())
        }
        self.verifiers = {item.name: _selected(run, item) for item in data.verifiers}
        self.judging_training = {name: self._judging(name, task_set) for name, task_set in self.training.items()}
        self.judging_evaluation = {
            name: self._judging(f"eval:{name}", task_set) for name, task_set in self.evaluation.items()
        }

    def _judging(self, whose: str, task_set: TaskSet) -> Judging | None:
        judges = task_set.judges()
        if judges is None:
            return None
        keys: dict[str, str] = {}
        for name, judge in judges.items():
            selected = SelectedVerifier(judge.verifier, judge.distribution)
            key = name
            if name in self.verifiers and self.verifiers[name].spec != selected.spec:
                key = f"{name} of {whose}"
            self.verifiers.setdefault(key, selected)
            keys[name] = key
        return Judging(keys, {name: judge.weight for name, judge in judges.items()})


def _selected(run: LoadedRunFile, item: Selection) -> SelectedVerifier:
    return SelectedVerifier(run.make("verifiers", item), run.plugins.get("verifiers", item.name).distribution)


def make_cursor(
    run: LoadedRunFile, task_sets: TaskSets, renderer: Renderer, filters: Mapping[str, PromptFilter]
) -> Cursor | Mixture:
    """The walk over the run's task set, or over its sources."""
    data = run.get(DataSection)
    _, seed, _ = seeds(run)

    def cursor(source: DataSource) -> Cursor:
        limits = source_limits(run, source)
        room = limits.max_prompt_len if limits.max_context is None else limits.max_context - 1
        return Cursor(
            task_sets.training[source.name],
            renderer.render,
            filters,
            max_prompt_len=min(limits.max_prompt_len, room),
            seed=seed,
            shuffle=data.shuffle,
            epochs=data.epochs,
        )

    if not data.sources:
        (source,) = data.all_sources()
        return cursor(source)
    return Mixture(
        [
            Source(source.name, cursor(source), _ratio(source, task_sets.training[source.name]), source.max_concurrent)
            for source in data.sources
        ]
    )


def _ratio(source: DataSource, task_set: TaskSet) -> float:
    if source.ratio is not None:
        return source.ratio
    size: int | None
    try:
        size = len(task_set)
    except TypeError:
        size = None
    if not size or task_set.online:
        what = "grows while the run goes on" if task_set.online else "is empty" if size == 0 else "is streaming"
        raise RerollError(
            f"data.sources: {source.name!r} has no ratio, and its task set {what}: its share cannot follow from its "
            "size. Give every source a ratio"
        )
    return float(size)


def make_plans(run: LoadedRunFile, task_sets: TaskSets, files: ModelFiles) -> dict[str, GroupPlan]:
    """How groups of each source are drawn, by the name that its dispatches have: empty for an only one."""
    data, rollout = run.get(DataSection), run.get(RolloutSection)
    plans: dict[str, GroupPlan] = {}
    for source in data.all_sources():
        limits = source_limits(run, source)
        plans[source.name if data.sources else ""] = GroupPlan(
            rollout_id=0,
            size=rollout.n_samples_per_prompt,
            sampling=rollout.sampling(seed=0, max_new_tokens=limits.max_response_len),
            max_context=limits.max_context or files.max_context,
            purpose=f"train:{source.name}" if data.sources else "train",
            env_name=source.name,
            harness=_harness(run, source.harness),
            judging=task_sets.judging_training[source.name] or _own_weights(data, source),
        )
    return plans


def _own_weights(data: DataSection, source: DataSource) -> Judging | None:
    """The run's verifiers with the source's weights, where it has any."""
    return Judging({}, data.weights(source)) if source.verifier_weights else None


def make_evaluators(
    run: LoadedRunFile, task_sets: TaskSets, maker: GroupMaker, files: ModelFiles, warn: Callable[[str], None]
) -> list[Evaluator]:
    rollout = run.get(RolloutSection)
    return [
        Evaluator(
            item,
            task_sets.evaluation[item.name],
            maker,
            rollout,
            harness=_harness(run, item.harness),
            judging=task_sets.judging_evaluation[item.name],
            max_context=files.max_context,
            warn=warn,
        )
        for item in run.get(EvalSection).sets
    ]


def _harness(run: LoadedRunFile, selection: Selection | None) -> Any:
    return run.make("harnesses", selection) if selection is not None else None
