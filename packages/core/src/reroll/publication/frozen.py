"""Weights that never change: what stands in the publisher's place where nothing is published."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from reroll.api import Engine, EngineUnavailable, Router
from reroll.publication.fleet import Fleet
from reroll.publication.publisher import Patience


class FrozenWeights:
    """Engines that serve what they were started with, from the first response to the last.

    Args:
        timeout: seconds that readmitting an engine may take.
    """

    def __init__(self, engines: Sequence[Engine], router: Router, timeout: float) -> None:
        self.fleet = Fleet(engines, router)
        self.timeout = timeout

    @property
    def engines(self) -> Sequence[Engine]:
        return self.fleet.engines

    async def begin(self) -> None:
        """Before the first response: servers that were running before serve what they have."""
        for engine in self.engines:
            if not engine.holds_start:
                await engine.keep_weights()

    def lose(self, engine: Engine, reason: EngineUnavailable) -> None:
        self.fleet.lose(engine, reason)

    async def readmit(self, engine: Engine, patience: Patience = nullcontext) -> int:
        """Routes to an engine again that was started anew; gives its version."""
        async with patience():
            await engine.keep_weights()
            version = await engine.weight_version()
        self.fleet.restore(engine)
        return version
