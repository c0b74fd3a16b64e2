"""A generated task set whose tasks offer a calculator: sums of several numbers, and products of two sums."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from reroll.api import Config, Task, TaskSet
from reroll.tasks.arithmetic import one_in_ten
from reroll.tasks.calculator import Calculator

Kind = Literal["sum", "product"]

LISTED = 100_000
"""Up to so many calculations a split is listed and shuffled, so that none comes twice."""

CALCULATOR: dict[str, Any] = Calculator().schema()
"""The tool that every task offers, in the chat template's form."""


class Calculation(NamedTuple):
    """A sum of its operands, or the product of the sum of the first two and the sum of the last two."""

    kind: Kind
    operands: tuple[int, ...]

    @property
    def expression(self) -> str:
        if self.kind == "sum":
            return " + ".join(map(str, self.operands))
        a, b, c, d = self.operands
        return f"({a} + {b}) * ({c} + {d})"

    @property
    def result(self) -> int:
        if self.kind == "sum":
            return sum(self.operands)
        a, b, c, d = self.operands
        return (a + b) * (c + d)

    @property
    def held_out(self) -> bool:
        """Whether it belongs to the held-out split: one in ten, by hash, with all that differ in order alone. Of two
        terms, the sums that are held out of `addition`."""
        if self.kind == "sum":
            return one_in_ten(":".join(["+", *map(str, sorted(self.operands))]))
        pairs = sorted([sorted(self.operands[:2]), sorted(self.operands[2:])])
        return one_in_ten(f"product:{pairs}")


class CalculationsConfig(Config):
    kinds: list[Kind] = Field(["sum", "product"], min_length=1)
    """`sum` asks for `12 + 7 + 30`, `product` for `(4 + 8) * (15 + 6)`; of several, each comes about as often."""
    terms: int = Field(3, ge=2, le=6)
    """Operands of a sum: more make it longer, and harder."""
    low: int = Field(0, ge=0)
    """Smallest operand: with `high`, how hard the questions are."""
    high: int = 99
    """Largest operand: with `low`, how hard the questions are."""
    split: Literal["train", "held_out"] = "train"
    """`held_out` calculations occur neither in `train` nor in the pre-training of `builtin:tiny-tools`."""
    size: int | None = Field(None, gt=0)
    """Number of tasks; by default every calculation of the split. Where both splits together have over 100,000 they are
    drawn instead, so that one may come again, and the default is 100,000."""
    seed: int = 0
    """Which calculations come, and in which order."""
    verifier: str = "math"
    """Name of the verifier whose target the result is."""

    @model_validator(mode="after")
    def _makes_sense(self) -> CalculationsConfig:
        if self.high < self.low:
            raise ValueError(f"high = {self.high} is below low = {self.low}")
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds = {self.kinds} names one twice")
        if "terms" in self.model_fields_set and "sum" not in self.kinds:
            raise ValueError(f"terms = {self.terms} is of sums, and kinds = {self.kinds} has none: remove it")
        return self


class Calculations(TaskSet):
    """Questions of the form `What is 12 + 7 + 30?` and `What is (4 + 8) * (15 + 6)?`, with a calculator to call."""

    name = "calculations"
    config: CalculationsConfig
    Config = CalculationsConfig

    @cached_property
    def _listed(self) -> list[Calculation] | None:
        """The split's calculations in order; None where there are too many to list."""
        span = self.config.high - self.config.low + 1
        if sum(span ** self._arity(kind) for kind in self.config.kinds) > LISTED:
            return None
        found = [calculation for kind in self.config.kinds for calculation in self._all(kind)]
        random.Random(f"{self.name}:{self.config.seed}").shuffle(found)
        wanted = self.config.size or len(found)
        if not found or wanted > len(found):
            raise ValueError(
                f"task set {self.name!r} has {len(found)} {self.config.split} calculations between {self.config.low} "
                f"and {self.config.high}, size = {wanted} asks for more: widen the range or lower size"
            )
        return found[:wanted]

    def _arity(self, kind: Kind) -> int:
        return self.config.terms if kind == "sum" else 4

    def _all(self, kind: Kind) -> Iterator[Calculation]:
        numbers = range(self.config.low, self.config.high + 1)
        for operands in itertools.product(numbers, repeat=self._arity(kind)):
            calculation = Calculation(kind, operands)
            if self._in_split(calculation):
                yield calculation

    def _in_split(self, calculation: Calculation) -> bool:
        return calculation.held_out is (self.config.split == "held_out")

    def _drawn(self, index: int) -> Calculation:
        generator = random.Random(f"{self.name}:{self.config.seed}:{index}")
        while True:
            # The kind is drawn anew each time: one of them may have nothing in the split.
            kind = generator.choice(self.config.kinds)
            numbers = [generator.randint(self.config.low, self.config.high) for _ in range(self._arity(kind))]
            calculation = Calculation(kind, tuple(numbers))
            if self._in_split(calculation):
                return calculation

    def __len__(self) -> int:
        return len(self._listed) if self._listed is not None else self.config.size or LISTED

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        calculation = self._listed[index] if self._listed is not None else self._drawn(index)
        return Task(
            prompt=[{"role": "user", "content": f"What is {calculation.expression}?"}],
            targets={self.config.verifier: str(calculation.result)},
            source_dataset=f"{self.name}/{self.config.split}",
            source_row=index,
            prepared_sample_id=calculation.expression,
            tools=[CALCULATOR],
        )
