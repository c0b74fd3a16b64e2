"""The task set `reasoning-gym`: questions that reasoning-gym generates, endlessly many and with a known answer."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic import Field, model_validator

from reroll import Config, Problem, RunFile, Task, TaskError, TaskSet
from reroll_verifiers_reasoning_gym.datasets import DatasetError, Part, check, make_mixture
from reroll_verifiers_reasoning_gym.entries import encode

INSTRUCTION = "Work it out step by step. Then write the final answer, and nothing else, between <answer> and </answer>."


class DatasetConfig(Config):
    """One of several datasets."""

    name: str
    """Name of the dataset in reasoning-gym, such as `chain_sum`."""
    options: dict[str, Any] = {}
    """Options of its generator, apart from `seed` and `size`."""
    weight: float = Field(1.0, gt=0)
    """Its share of the tasks, relative to the other datasets' weights."""


class ReasoningGymConfig(Config):
    """Options of the task set `reasoning-gym`. Either `dataset` or `datasets` is given."""

    dataset: str | None = None
    """Name of the dataset in reasoning-gym, such as `chain_sum`."""
    options: dict[str, Any] = {}
    """Options of the generator of `dataset`, apart from `seed` and `size`."""
    datasets: list[DatasetConfig] = []
    """Several datasets, mixed by weight."""
    size: int = Field(1000, gt=0)
    """Number of tasks."""
    seed: int = 0
    """Which tasks they are. Sets of two seeds share a task only where a generator draws it twice, as it does where it
    has few to draw."""
    instruction: str = INSTRUCTION
    """What is asked below every question; the verifier's option `answer` must find what it asks for. Empty for none."""
    verifier: str = "reasoning-gym"
    """Name of the verifier whose target the entry is."""

    @model_validator(mode="after")
    def _one_way(self) -> ReasoningGymConfig:
        if (self.dataset is None) is not bool(self.datasets):
            both = "both" if self.datasets else "neither"
            raise ValueError(f"{both} of dataset and datasets are given: give one, such as dataset = 'chain_sum'")
        if self.datasets and self.options:
            raise ValueError("options are given beside datasets: give each dataset its own options")
        names = [item.name for item in self.datasets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"datasets names {', '.join(twice)} twice: give each dataset once")
        return self

    def parts(self) -> list[Part]:
        if self.dataset is not None:
            return [Part(self.dataset, self.options)]
        return [Part(item.name, item.options, item.weight) for item in self.datasets]


class ReasoningGymTasks(TaskSet):
    """reasoning-gym's questions. The target is the whole entry, and the options of the generator that it is from."""

    name = "reasoning-gym"
    Config = ReasoningGymConfig

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        for index, part in enumerate(config.parts()):
            try:
                check(part.dataset, part.options)
            except DatasetError as error:
                field = error.field
                if config.datasets:
                    field = f"datasets[{index}].{'name' if field == 'dataset' else field}"
                yield Problem(f"{key}.{field}", str(error.args[0]), error.remedy)

    @cached_property
    def _options(self) -> dict[str, dict[str, Any]]:
        try:
            return {part.dataset: encode(part.options, "options") for part in self.config.parts()}
        except TypeError as error:
            raise TaskError(f"task set {self.name!r}: {error}") from error

    @cached_property
    def _mixture(self) -> Any:
        try:
            return make_mixture(self.config.parts(), self.config.size, generator_seed(self.config.seed))
        except DatasetError as error:
            raise TaskError(f"task set {self.name!r}: {error}") from error

    def __len__(self) -> int:
        size: int = self.config.size
        return size

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        mixture = self._mixture
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some generators print dots
                entry = mixture[index]
        except Exception as error:  # a generator that finds no puzzle for its options says so in its own way
            names = ", ".join(self._options)
            raise TaskError(f"task {index} of {names} cannot be generated: {type(error).__name__}: {error}") from error
        dataset = entry["metadata"]["source_dataset"]
        try:
            saved = encode(entry, f"task {index} of {dataset}")
        except TypeError as error:
            raise TaskError(f"{error}; leave the dataset out") from error
        instruction = f"\n\n{self.config.instruction}" if self.config.instruction else ""
        return Task(
            prompt=[{"role": "user", "content": f"{saved['question']}{instruction}"}],
            targets={self.config.verifier: {"dataset": dataset, "options": self._options[dataset], "entry": saved}},
            source_dataset=f"reasoning-gym/{dataset}",
            source_row=index,
            prepared_sample_id=f"{self._identity}-{self.config.seed}-{index}",
        )

    @cached_property
    def _identity(self) -> str:
        """Of what the tasks are drawn from, so that two sets of a run do not give two tasks one name."""
        text = json.dumps([[*part[:2], part.weight] for part in self.config.parts()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def generator_seed(seed: int) -> int:
    """The seed that generators get, below 2^32.

    They draw entry i from the number seed + i, so that sets of neighbouring seeds would have nearly all of their tasks
    in common, and a model would be evaluated on what it was trained on.
    """
    digest = hashlib.sha256(f"reroll reasoning-gym {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
