"""Trackers receive metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from reroll.api.component import Component
from reroll.api.context import RunContext


class Tracker(Component):
    """A sink of metrics. Its failure is logged once and never reaches training."""

    shows_groups: ClassVar[bool] = False
    """Whether it takes conversations: only then is `log_groups` called."""

    def lacks(self) -> str | None:
        """What it cannot run without and does not find here, such as a package or a key, and the remedy; None where
        nothing is missing. Asked by `reroll validate` and before a run starts."""
        return None

    @abstractmethod
    def open(self, context: RunContext) -> None: ...

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """`step` is the number of completed optimizer steps; metric names have the form `room/name`. Nearly all values
        are numbers; a word says which of a few ways was taken, such as `train/scoring_pass`. One step may have several
        calls: an evaluation is one of its own, and so is a collection that held nothing to train on."""

    def log_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Whole groups of a collection, for people to read, as plain data that JSON can hold: `collection` (counted
        from 0), `task`, `source`, `outcome` (`passed`, `filtered` or `aborted`), `prompt` (text) and `responses`, each
        with `text`, `reward` (None where it was not scored), `verdicts` (verifier → state, score and detail),
        `stop_condition` and `weight_versions`."""

    def close(self) -> None:
        """Writes what is pending."""
