"""`multiplication` of the catalog: the generated task set, as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from pydantic import Field

from reroll.api import Dataset, DatasetConfig, DatasetRow, RerollError, TaskError
from reroll.tasks.arithmetic import ArithmeticConfig, Multiplication


class MultiplicationConfig(DatasetConfig):
    low: int = 0
    """Smallest operand."""
    high: int = 99
    """Largest operand."""
    size: int | None = Field(None, gt=0)
    """Rows of `train`; by default every pair, or 100,000 where there are over a million."""
    test_size: int | None = Field(None, gt=0)
    """Rows of `test`; as `size`."""
    seed: int = 0
    """Which pairs come, and in which order."""
    verifier: str = "math"
    """The verifier whose target the product is."""


class MultiplicationDataset(Dataset):
    """Products of two numbers; pairs of `test`, one in ten, stand in `train` in neither order."""

    name = "multiplication"
    verifier = "math"
    template = "What is {a} * {b}?"
    places = ("a", "b")
    shapes = "generated; it takes no source"
    generated = True
    Config = MultiplicationConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.verifier = self.config.verifier

    def row(self, raw: Mapping[str, Any]) -> DatasetRow:
        a, b = raw.get("a"), raw.get("b")
        if type(a) is not int or type(b) is not int:
            raise TaskError(f"a = {a!r:.60}, b = {b!r:.60} are no two whole numbers")
        return DatasetRow(str(a * b), {"a": str(a), "b": str(b)})

    def generate(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        given = self.config
        for split, own, size in (("test", "held_out", given.test_size), ("train", "train", given.size)):
            config = ArithmeticConfig(
                low=given.low,
                high=given.high,
                split=cast(Literal["train", "held_out"], own),
                size=size,
                seed=given.seed,
                verifier=given.verifier,
            )
            tasks = Multiplication(config)
            try:
                len(tasks)
            except ValueError as error:
                raise RerollError(str(error)) from None
            for task in tasks:
                a, b = task.prepared_sample_id.split("*")
                yield split, {"a": int(a), "b": int(b)}
