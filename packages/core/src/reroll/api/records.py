"""Writers that keep what became of every group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reroll.api.component import Component
from reroll.api.context import RunContext
from reroll.api.sections import RunFile
from reroll.api.traces import Group

Disposition = Literal["consumed", "expired", "filtered", "aborted", "failed", "returned"]
"""How a dispatch ends: given to training; past the staleness bound; dropped by a group filter; too few
scored responses; its rollouts failed; handed back to be dispatched again."""


@dataclass(frozen=True)
class Decision:
    """What a group filter decided: `passed`, `filtered` or `aborted`, and why."""

    outcome: Literal["passed", "filtered", "aborted"]
    reason: str = ""


class RecordWriter(Component):
    """Sees every scored group before its decision is applied, and every way out.

    A writer's failure is logged once and never reaches training; a method must not block.
    """

    @classmethod
    def from_run(cls, run: RunFile) -> RecordWriter | None:
        """A writer for this run, or None where the run file does not ask for one. Every installed writer is
        asked, so that a package's own section decides."""
        return cls()

    @abstractmethod
    def open(self, context: RunContext) -> None: ...

    @abstractmethod
    def group_scored(self, observation_id: str, group: Group, decision: Decision) -> None: ...

    @abstractmethod
    def group_left(self, observation_id: str, disposition: Disposition, staleness: int) -> None:
        """`staleness` in optimizer steps from the version of the group's oldest token: to the first step that used it;
        for one that was too old, to the last step of the collection that could have; 0 for `returned`."""

    def metrics(self) -> Mapping[str, float]:
        return {}

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Writes what is queued, for at most `timeout` seconds."""

    def closing_line(self) -> str:
        """What it kept and where, told to the user at the end of the run, after `close`; empty for nothing."""
        return ""
