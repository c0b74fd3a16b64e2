"""reasoning-gym's datasets by name, and those that cannot be trained on as they are.

The lists are of reasoning-gym 0.1.25, which is why the package asks for that version: tasks and scores are the
generators', and another version may draw other tasks from one seed. Tests hold the lists against the installed library.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

UNSTEADY = "a task is not the same in every process: the generator follows the order of a set, or a shared random state"
GENEROUS = "its scorer gives the full score to wrong answers"
RUNS_CODE = "its generator runs code from a data file in the process of the run"

REFUSED: Mapping[str, str] = {
    "codeio": RUNS_CODE,
    "coin_flip": f"{GENEROUS}, to 0 for example",
    "complex_arithmetic": f"{GENEROUS}, to nan for example",
    "game_of_life_halting": f"{GENEROUS}, to any that is not empty",
    "intermediate_integration": UNSTEADY,
    "isomorphic_strings": UNSTEADY,
    "knight_swap": UNSTEADY,
    "list_functions": UNSTEADY,
    "polynomial_multiplication": UNSTEADY,
    "ransom_note": UNSTEADY,
    "word_ladder": UNSTEADY,
}
"""Dataset → why no run can use it."""

EVALUATING = frozenset(
    {"binary_matrix", "countdown", "n_queens", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion"}
)
"""Datasets whose scorers have Python evaluate the answer: with `eval`, or with SymPy's `parse_expr`, which uses it."""

RESERVED = ("seed", "size")
"""Options of every generator that the task set gives itself."""


class DatasetError(ValueError):
    """A dataset that cannot be had. `field` is what is at fault: `dataset` or `options`."""

    def __init__(self, message: str, field: str, remedy: str = "") -> None:
        super().__init__(message)
        self.field, self.remedy = field, remedy

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.remedy}" if self.remedy else str(self.args[0])


class Part(NamedTuple):
    """A dataset with options of its generator, and its share among others."""

    dataset: str
    options: Mapping[str, Any]
    weight: float = 1.0


def usable() -> list[str]:
    """Every dataset that is not refused."""
    from reasoning_gym.factory import DATASETS

    return sorted(name for name in DATASETS if name not in REFUSED and name != "composite")


def check(dataset: str, options: Mapping[str, Any]) -> None:
    """DatasetError where there is no such dataset, where it is refused, or where its generator does not take the
    options."""
    make_dataset(dataset, options)


def make_dataset(dataset: str, options: Mapping[str, Any], seed: int = 0) -> Any:
    """The dataset alone, as its scorer needs it; DatasetError as `check` says."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if dataset in REFUSED:
        raise DatasetError(f"{dataset!r} is not usable: {REFUSED[dataset]}", "dataset", "choose another one")
    if dataset not in DATASETS or dataset == "composite":
        raise DatasetError(f"no dataset is named {dataset!r}", "dataset", _nearest(dataset, usable()))
    known = [item.name for item in dataclasses.fields(DATASETS[dataset][1]) if item.name not in RESERVED]
    for name in options:
        if name in RESERVED:
            raise DatasetError(f"{dataset!r} is given {name!r}", "options", f"give the task set's own `{name}`")
        if name not in known:
            raise DatasetError(f"{dataset!r} has no option {name!r}", "options", _nearest(name, known))
    return _made(lambda: create_dataset(dataset, seed=seed, **options), dataset, options)


def make_mixture(parts: Sequence[Part], size: int, seed: int) -> Any:
    """reasoning-gym's composite of the parts, of which an entry follows from seed and index alone; DatasetError as for
    `check`."""
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_dataset

    for part in parts:
        check(part.dataset, part.options)
    specs = [DatasetSpec(name=part.dataset, weight=part.weight, config=dict(part.options)) for part in parts]
    names = " and ".join(part.dataset for part in parts)
    return _made(lambda: create_dataset("composite", datasets=specs, size=size, seed=seed), names, {"size": size})


def _made(make: Callable[[], Any], what: str, options: Mapping[str, Any]) -> Any:
    try:
        return make()
    except Exception as error:  # a generator checks its options with whatever comes to hand, mostly `assert`
        why = str(error) or type(error).__name__
        raise DatasetError(f"{what!r} does not take {dict(options)!r}: {why}", "options") from error


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known) or 'none'}"


# Two scorers evaluate what stands in the entry. A generator writes no code there, a file of targets may.
_EXPRESSION = re.compile(r"[\s0-9a-fA-Fx()+*&|^~<>-]*")


def evaluated_in_entry(dataset: str, entry: Mapping[str, Any]) -> str | None:
    """What of the entry the scorer would run as code and no generator writes; None where there is nothing."""
    if dataset == "bitwise_arithmetic":
        problem = str(entry["metadata"].get("problem"))
        return None if _EXPRESSION.fullmatch(problem) else f"metadata.problem = {problem!r:.60}"
    if dataset == "number_sorting":
        try:
            ast.literal_eval(entry["answer"])
        except (TypeError, ValueError, SyntaxError, RecursionError):
            return f"answer = {entry['answer']!r:.60}"
    return None
