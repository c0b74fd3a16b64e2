"""The agent that Harbor runs in a trial: the turns of a conversation of reroll's. Harbor imports it by its path."""

from __future__ import annotations

from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from reroll_harbor.turns import turns_of


class TurnsAgent(BaseAgent):  # type: ignore[misc]  # Harbor is not there where types are checked
    """Asks no model itself: the harness does, so that tokens are kept as they were sampled."""

    def __init__(self, *args: Any, trial: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns_of(trial)

    @staticmethod
    def name() -> str:
        return "reroll"

    def version(self) -> str | None:
        return None

    async def setup(self, environment: BaseEnvironment) -> None:
        return

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self._turns(environment)
