"""Derivations make new tasks from saved rollouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reroll.api.component import Component
from reroll.api.tasks import Message
from reroll.api.traces import Trace
from reroll.api.verifiers import Verdict


@dataclass(frozen=True)
class Anchor:
    """A node of a saved rollout from which a derived task starts."""

    node: int


class Derivation(Component):
    """Turns a saved rollout into tasks. Records are read-only mappings of the saved-rollout schema."""

    def anchors(self, record: Mapping[str, Any], seed: int) -> list[Anchor]:
        """Where derived tasks start; by default once, at the final state."""
        nodes = record["nodes"]
        return [Anchor(len(nodes) - 1)] if nodes else []

    def score(self, record: Mapping[str, Any], anchor: Anchor, trace: Trace) -> Verdict | None:
        """Judges an answer to the derived task; None where the source's own verifiers do, which is the default."""
        return None

    @abstractmethod
    def prompt(self, record: Mapping[str, Any], anchor: Anchor) -> list[Message]:
        """The derived task's prompt."""
