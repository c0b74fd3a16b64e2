"""What the results in a folder were measured with: `generation.json`. Results of two protocols are not counted
together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from reroll.api import RerollError
from reroll.checkpoints.state import differences, moved
from reroll.config.atomic import write_whole
from reroll.traces.checked import Checked, Table, Text, read_checked

SCHEMA = 1
FILE = "generation.json"

Count = Annotated[int, Field(ge=0)]


def _tuple(value: Any) -> Any:
    """JSON has none."""
    return tuple(value) if isinstance(value, list) else value


def _number_of(shard: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= shard[0] <= shard[1]:
        raise ValueError("a shard is its number, counted from 1, and of how many")
    return shard


Shard = Annotated[tuple[int, int], BeforeValidator(_tuple), AfterValidator(_number_of)]
"""Which one, counted from 1, and of how many."""


class ResultsError(RerollError, ValueError):
    """A folder holds no results, or results that do not fit what is asked of them."""


class SourceTasks(Checked):
    """The tasks of one data source.

    Attributes:
        task_set: its selection, as a run file writes it, with absolute paths.
        size: tasks that count, after `generation.limit`.
        fingerprint: over their prompts and targets; None where the set has no such thing.
    """

    name: Text
    task_set: Table
    size: Count
    fingerprint: Text | None


class GenerationProtocol(Checked):
    """Everything that a trial's outcome follows from, beside chance, and which tasks there are.

    Attributes:
        run_id: of the generation across its starts; of each shard, its own.
        how: sampling, lengths, harnesses, template and tokenizer, verifiers with weights, what counts as passed.
        model: name → size and digest of its files.
        seed: of sampling.
        n_trials: attempts of each task.
        shard: which one, counted from 1, and of how many; None for all tasks.
        instances: positions of the tasks that were asked for by name; None for all.
    """

    # An option of a plugin may be infinite, and nothing else may be read in its place.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    name: Text
    run_id: Text
    how: Table
    model: Table
    seed: int
    sources: list[SourceTasks]
    n_trials: Annotated[int, Field(gt=0)]
    shard: Shard | None = None
    instances: list[int] | None = None

    @property
    def tasks(self) -> int:
        """Tasks of all sources, before sharding."""
        return sum(source.size for source in self.sources)

    def positions(self) -> Sequence[int]:
        """Of the tasks that this folder is to hold, ascending."""
        number, of = self.shard or (1, 1)
        if self.instances is None:
            return range(number - 1, self.tasks, of)
        return [position for position in self.instances if position % of == number - 1]

    def task_set_of(self, source: str) -> str:
        """The selection of a data source's task set as JSON, for the column `task_set` of an index."""
        found = next(item for item in self.sources if item.name == source)
        return json.dumps(found.task_set, sort_keys=True, separators=(",", ":"))

    def differences(self, other: GenerationProtocol) -> list[str]:
        """What was measured differently in the two; which tasks of the sets, and how many trials, may differ."""
        found = differences("", self._identity(), other._identity())
        return [
            f"{key}: {before!r} and {after!r}" for key, before, after in found if not self._moved(key, before, after)
        ]

    def _moved(self, key: str, before: Any, after: Any) -> bool:
        """Whether it is where a task set lies, on another machine for example: what is in it has a fingerprint."""
        known = (f"sources.{item.name}.task_set." for item in self.sources if item.fingerprint is not None)
        return key.startswith(tuple(known)) and moved(before, after)

    def _identity(self) -> Mapping[str, Any]:
        sources = {item.name: item.model_dump(exclude={"name"}) for item in self.sources}
        order = [item.name for item in self.sources]  # positions follow from it
        return {"how": self.how, "model": self.model, "seed": self.seed, "sources": sources, "order": order}

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, json.dumps({"schema": SCHEMA, **self.model_dump(mode="json")}, indent=2) + "\n")


def read_protocol(folder: Path) -> GenerationProtocol | None:
    """What the folder's results were measured with, None where it has none; ResultsError where it cannot be read."""
    try:
        return read_checked(GenerationProtocol, folder / FILE, SCHEMA)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ResultsError(f"{folder}: {error}") from None


def check_results(folder: Path, now: GenerationProtocol) -> GenerationProtocol | None:
    """What the results were measured with that the folder holds already; ResultsError if they are of something else
    than is to be measured `now`."""
    before = read_protocol(folder)
    if before is None:
        return None
    remedy = "undo the change, or give another generation.results_dir"
    if changed := before.differences(now):
        if any(text.partition(":")[0].endswith(".fingerprint") for text in changed):
            changed.append("(a fingerprint is over prompts and targets: the tasks are other ones)")
        listed = "\n  ".join(changed)
        raise ResultsError(
            f"{folder} holds results that were measured otherwise (there, and now):\n  {listed}\n{remedy}"
        )
    if (before.shard, before.instances) != (now.shard, now.instances):
        parts = [f"shard {item.shard}" if item.instances is None else "named instances" for item in (before, now)]
        raise ResultsError(
            f"{folder} holds results of other tasks: of {parts[0]}, and {parts[1]} is asked for; {remedy}"
        )
    if now.n_trials < before.n_trials:
        raise ResultsError(
            f"generation.n_trials = {now.n_trials}: {folder} holds results of {before.n_trials} trials a task, and "
            "nothing is thrown away; raise it, or give another generation.results_dir"
        )
    return before
