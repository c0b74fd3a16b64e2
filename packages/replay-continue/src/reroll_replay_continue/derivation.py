"""The derivation `continue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from reroll import Anchor, Config, Derivation, Message
from reroll.replay import Forest, conversation, without_dangling


class ContinueConfig(Config):
    """Options of the derivation `continue`."""

    anchor: Literal["compaction", "tool-call"] = "compaction"
    """Where to resume: `compaction` after each restart from a summary, one task for each; `tool-call` right after a
    tool result that leaves no call open, one task a rollout, which of them follows from the seed."""


class Continue(Derivation):
    """Resumes a saved rollout part-way: the prompt is what the model saw there."""

    name = "continue"
    Config = ContinueConfig

    def anchors(self, record: Mapping[str, Any], seed: int) -> list[Anchor]:
        forest = Forest(record["nodes"])
        if self.config.anchor == "compaction":
            return [Anchor(node) for node in forest.compaction_anchors()]
        # A rollout has many results, and tasks that share most of their prompt teach the same thing.
        found = forest.tool_anchors()
        return [Anchor(found[seed % len(found)])] if found else []

    def prompt(self, record: Mapping[str, Any], anchor: Anchor) -> list[Message]:
        return without_dangling(conversation(record, anchor.node))
