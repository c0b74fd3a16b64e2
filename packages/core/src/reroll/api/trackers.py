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
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """`step` is the number of completed optimizer steps; metric names have the form `room/name`."""

    def close(self) -> None:
        """Writes what is pending."""
