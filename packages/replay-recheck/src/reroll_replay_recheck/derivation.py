"""The derivation `recheck`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reroll import Anchor, Config, Derivation, Message
from reroll.replay import conversation, without_dangling


class RecheckConfig(Config):
    """Options of the derivation `recheck`."""

    instruction: str = "Check your work and answer again."
    """What the model is told after the finished conversation."""


class Recheck(Derivation):
    """Asks for a check of a finished rollout: its final conversation, and an instruction as the user's next turn."""

    name = "recheck"
    Config = RecheckConfig

    def prompt(self, record: Mapping[str, Any], anchor: Anchor) -> list[Message]:
        finished = without_dangling(conversation(record, anchor.node))
        return [*finished, {"role": "user", "content": self.config.instruction}]
