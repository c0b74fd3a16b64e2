"""Generated task sets: two-operand arithmetic with a held-out split."""

from __future__ import annotations

import hashlib
import random
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from reroll.api import Config, Task, TaskSet

ENUMERATED = 1_000_000
"""Up to so many operand pairs a split is listed and shuffled, so that no pair comes twice."""


def one_in_ten(identity: str) -> bool:
    """Whether what `identity` names belongs to a held-out split, which a hash decides."""
    digest = hashlib.sha256(identity.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 10 == 0


def is_held_out(operation: str, a: int, b: int) -> bool:
    """Whether a pair belongs to the held-out split: one pair in ten, by hash, both orders together."""
    return one_in_ten(f"{operation}:{min(a, b)}:{max(a, b)}")


class ArithmeticConfig(Config):
    low: int = 0
    """Smallest operand: with `high`, how hard the questions are."""
    high: int = 99
    """Largest operand: with `low`, how hard the questions are."""
    split: Literal["train", "held_out"] = "train"
    """`held_out` pairs occur neither in `train` nor in the pre-training of the built-in models."""
    size: int | None = Field(None, gt=0)
    """Number of tasks; by default every pair of the split, or 100,000 where there are over a million pairs."""
    seed: int = 0
    """Which pairs come, and in which order."""
    verifier: str = "math"
    """Name of the verifier whose target the result is."""

    @model_validator(mode="after")
    def _range(self) -> ArithmeticConfig:
        if self.high < self.low:
            raise ValueError(f"high = {self.high} is below low = {self.low}")
        return self


class Arithmetic(TaskSet):
    """Base of both sets; `operation` is the sign in the question."""

    operation: ClassVar[str]
    Config = ArithmeticConfig

    @cached_property
    def _pairs(self) -> list[tuple[int, int]] | None:
        """The split's pairs in order; None where there are too many to list."""
        span = self.config.high - self.config.low + 1
        if span * span > ENUMERATED:
            return None
        operands = range(self.config.low, self.config.high + 1)
        pairs = [(a, b) for a in operands for b in operands if self._in_split(a, b)]
        random.Random(f"{self.name}:{self.config.seed}").shuffle(pairs)
        wanted = self.config.size or len(pairs)
        if not pairs or wanted > len(pairs):
            raise ValueError(
                f"task set {self.name!r} has {len(pairs)} {self.config.split} pairs between {self.config.low} and "
                f"{self.config.high}, size = {wanted} asks for more: widen the range or lower size"
            )
        return pairs[:wanted]

    def _in_split(self, a: int, b: int) -> bool:
        return is_held_out(self.operation, a, b) is (self.config.split == "held_out")

    def __len__(self) -> int:
        return len(self._pairs) if self._pairs is not None else self.config.size or 100_000

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        a, b = self._pairs[index] if self._pairs is not None else self._drawn(index)
        answer = a + b if self.operation == "+" else a * b
        return Task(
            prompt=[{"role": "user", "content": f"What is {a} {self.operation} {b}?"}],
            targets={self.config.verifier: str(answer)},
            source_dataset=f"{self.name}/{self.config.split}",
            source_row=index,
            prepared_sample_id=f"{a}{self.operation}{b}",
        )

    def _drawn(self, index: int) -> tuple[int, int]:
        generator = random.Random(f"{self.name}:{self.config.seed}:{index}")
        while True:
            pair = (
                generator.randint(self.config.low, self.config.high),
                generator.randint(self.config.low, self.config.high),
            )
            if self._in_split(*pair):
                return pair


class Addition(Arithmetic):
    """Questions of the form `What is 47 + 38?`."""

    name = "addition"
    operation = "+"


class Multiplication(Arithmetic):
    """Questions of the form `What is 7 * 12?`."""

    name = "multiplication"
    operation = "*"
