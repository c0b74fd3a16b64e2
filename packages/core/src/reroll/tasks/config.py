"""`[data]`: which tasks, in which order, judged by what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from reroll.api import ConfigSection, Hook, Problem, RunFile, Selection, TaskSet


class DataSection(ConfigSection):
    section: ClassVar[str] = "data"

    task_set: Annotated[Selection, Hook("task_sets")] = Selection(name="addition")
    """The training tasks: `addition`, `multiplication`, `{ name = "file", path = "prompts.jsonl" }`, or a plugin's."""
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

    def problems(self, run: RunFile) -> Iterator[Problem]:
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

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        yield from check_task_set("data.task_set", self.task_set, self.verifiers, run, thorough)

    def weights(self) -> dict[str, float]:
        """Weight of every listed verifier."""
        return {item.name: self.verifier_weights.get(item.name, 1.0) for item in self.verifiers}


ROWS = 100_000
"""Tasks that are read before a run starts; `reroll validate` reads all of them."""
SAMPLE = 500
"""Tasks whose targets are tried before a run starts; `reroll validate` tries all of them."""


def check_task_set(
    key: str, selection: Selection, verifiers: list[Selection], run: RunFile, thorough: bool, sized: bool = False
) -> Iterator[Problem]:
    """Reads every task of a sized set; are its targets for listed verifiers, and can they be judged?

    Args:
        thorough: ask verifiers about every target instead of the first `SAMPLE`.
        sized: refuse a streaming set.
    """
    judges: dict[str, Any] = {item.name: _make(run, "verifiers", item) for item in verifiers}
    try:
        tasks = cast(TaskSet, _make(run, "task_sets", selection))
        size = _size(tasks)
    except Exception as error:  # a task set is anybody's code
        yield Problem(key, f"{selection.name!r} cannot be opened: {error}")
        return
    if size is None:
        if sized:
            yield Problem(key, f"{selection.name!r} is streaming and never ends", "give a set with a size")
        return
    faults = 0
    for index in range(size if thorough else min(size, ROWS)):
        try:
            task = tasks.task(index)
        except Exception as error:  # a task set is anybody's code
            reason: str | None = str(error)
        else:
            reason = _unjudgeable(task.targets, judges, ask=thorough or index < SAMPLE)
            reason = reason and f"task {task.key}: {reason}"
        if reason:
            faults += 1
            if faults <= 10:
                yield Problem(key, reason)
    if faults > 10:
        yield Problem(key, f"{faults - 10} more tasks have faults")


def _size(tasks: TaskSet) -> int | None:
    """Number of tasks, None for a streaming set."""
    try:
        return len(tasks)
    except TypeError:
        return None


def _unjudgeable(targets: Any, judges: dict[str, Any], ask: bool) -> str | None:
    for name, target in targets.items():
        if name not in judges:
            return f"its targets name the verifier {name!r}, which data.verifiers does not list"
        if ask and (why := judges[name].check_target(target)):
            return f"target {target!r} of {name!r} can never be judged: {why}"
    return None


def _make(run: RunFile, hook: str, selection: Selection) -> Any:
    cls = run.component(hook, selection.name)
    return cls(cls.Config(**selection.options))
