"""Derivations make new tasks from saved rollouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reroll.api.component import Component
from reroll.api.tasks import Message, Task
from reroll.api.traces import Trace
from reroll.api.verifiers import Verdict


@dataclass(frozen=True)
class Anchor:
    """Where in a saved rollout a derived task starts: an index into its nodes; None for the final state of its main
    conversation."""

    node: int | None = None


class Derivation(Component):
    """Turns a saved rollout into tasks.

    Records are mappings of the saved-rollout schema, or of another product's files of that shape; they are not to be
    changed. A derivation has no state: it is asked in threads, and in scoring processes.
    """

    def anchors(self, record: Mapping[str, Any], seed: int) -> list[Anchor]:
        """Where derived tasks start; by default once, at the final state.

        Args:
            seed: follows from the run's data seed and the record's identity, for a choice by chance.
        """
        return [Anchor()]

    @abstractmethod
    def prompt(self, record: Mapping[str, Any], anchor: Anchor) -> list[Message]:
        """The derived task's prompt. No call in it may lack its result, and no result its call."""

    def label(self, reward: float) -> str | None:
        """The class of a candidate whose rollout got `reward`: as many are offered of each class. None, the default,
        for no such balance."""
        return None

    def target(self, record: Mapping[str, Any], anchor: Anchor) -> Any:
        """What `score` compares an answer with, as JSON; saved with the task."""
        return None

    def score(self, task: Task, trace: Trace) -> Verdict:
        """Judges an answer against `task.targets[self.name]`. To be given only where the source's own verifiers do not
        apply; they judge where it is not."""
        raise NotImplementedError
