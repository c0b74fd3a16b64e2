"""Run files of generations with task sets of the tests' own, and what they measure."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import count

from reroll.api import Task, TaskSet, hookimpl
from reroll.config import load_run_file
from reroll.generation.assembly import measure
from reroll.plugins import load_plugins


class Endless(TaskSet):
    """Streaming: it comes in its order, and is not asked for a task by its index."""

    name = "endless"

    def task(self, index):
        raise AssertionError("a streaming set is walked")

    def __iter__(self):
        return (Task(f"{n}?", {"math": str(n)}, "endless", n, f"n{n}") for n in count())


class Ending(Endless):
    name = "ending"

    def __iter__(self):
        found = super().__iter__()
        return (next(found) for _ in range(3))


class Empty(TaskSet):
    name = "empty"

    def __len__(self):
        return 0

    def task(self, index):
        raise IndexError(index)


class Plugin:
    @hookimpl
    def reroll_task_sets(self):
        return [Endless, Ending, Empty]


@lru_cache
def plugins():
    found = load_plugins()
    found.register(Plugin(), "measuring-cases", "reroll-measuring-cases")
    return found


def run_of(task_sets, *overrides, verifiers='["math"]'):
    """A run file with one task set, a source for each of a table of them, or as the overrides say."""
    given = []
    if isinstance(task_sets, dict) and "name" not in task_sets:
        given = [f"data.sources={inline([source(name, item) for name, item in task_sets.items()])}"]
    elif task_sets is not None:
        given = [f"data.task_set={inline(task_sets)}"]
    model = [] if any(item.startswith("model.path") for item in overrides) else ['model.path="builtin:tiny-math"']
    return load_run_file(None, [*model, f"data.verifiers={verifiers}", *given, *overrides], plugins())


def source(name, item):
    return {"name": name, "ratio": 1.0, "task_set": item}


def _array(items):
    return "[" + ", ".join(inline(item) for item in items) + "]"


def inline(value):
    """As TOML that `--set` takes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
    return _array(value) if isinstance(value, list) else json.dumps(value)


def addition(size=6, **options):
    return {"name": "addition", "high": 9, "size": size, **options}


def measured(run, shard=None):
    return measure(run, shard, lambda text: None)
