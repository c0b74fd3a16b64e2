"""Trackers receive metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from reroll.api.component import Component
from reroll.api.context import RunContext


class Tracker(Component):
    """A sink of metrics. Its failure is logged once and never reaches training."""

    @abstractmethod
    def open(self, context: RunContext) -> None: ...

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """`step` is the number of completed optimizer steps; metric names have the form `room/name`. Nearly all values
        are numbers; a word says which of a few ways was taken, such as `train/scoring_pass`."""

    def close(self) -> None:
        """Writes what is pending."""
