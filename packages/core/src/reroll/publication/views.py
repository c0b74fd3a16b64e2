"""Gate and transport, as a mode sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reroll.api import Admission, CommitCost, Engine, EngineUnavailable, Router, Transport, WeightSource
from reroll.publication.fleet import Fleet
from reroll.workers.together import together


@dataclass
class Stranded:
    """The gate while every engine is out of routing: what was admitted needs one to go on, and engines are not loaded
    before it has ended. What counts as in flight is therefore what runs on them."""

    admission: Admission
    router: Router
    engines: Sequence[Engine]

    def close(self) -> None:
        self.admission.close()

    def open(self) -> None:
        self.admission.open()

    async def drained(self) -> None:
        await together(self.router.drained(engine) for engine in self.engines)


class Attributing(Transport):
    """The transport, as a mode sees it: an engine that cannot be reached is known by name."""

    def __init__(self, transport: Transport, fleet: Fleet) -> None:
        self.config = transport.config
        self._transport = transport
        self._fleet = fleet

    async def begin(self, source: WeightSource, version: int) -> int:
        return await self._transport.begin(source, version)

    async def stage(self, engine: Engine) -> None:
        try:
            await self._transport.stage(engine)
        except EngineUnavailable as error:
            self._fleet.lose(engine, error)
            raise

    async def commit(self, engine: Engine, version: int, recompute: bool = False) -> CommitCost:
        try:
            return await self._transport.commit(engine, version, recompute)
        except EngineUnavailable as error:
            self._fleet.lose(engine, error)
            raise

    async def finish(self) -> None:
        await self._transport.finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
