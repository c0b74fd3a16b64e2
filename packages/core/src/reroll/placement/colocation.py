"""Engines and trainer that take turns on the same devices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from reroll.api import Admission, Engine, PublicationReport
from reroll.workers.together import together


@dataclass
class HeldAdmission:
    """The gate before engines. While it is held nobody else opens it: a publication does when it is done, and engines
    that have only their weights back cannot serve yet."""

    gate: Admission
    held: bool = False

    def hold(self) -> None:
        self.held = True
        self.gate.close()

    def release(self) -> None:
        self.held = False
        self.gate.open()

    def close(self) -> None:
        self.gate.close()

    def open(self) -> None:
        if not self.held:
            self.gate.open()

    async def drained(self) -> None:
        await self.gate.drained()


@dataclass
class TakingTurns:
    """Gives devices to the trainer, and back to the engines with the next publication.

    A failure leaves the gate closed, since nobody knows what engines have in memory: the run ends with it.

    Attributes:
        publish_weights: the publisher, which has `admission` for its gate.
    """

    publish_weights: Callable[[int], Awaitable[PublicationReport]]
    engines: Sequence[Engine]
    admission: HeldAdmission
    trainer_has_devices: bool = field(default=False, init=False)

    async def to_trainer(self) -> None:
        """Before training and scoring passes: once nothing is in flight, engines give their memory up."""
        if self.trainer_has_devices:
            return
        self.admission.hold()
        await self.admission.drained()
        self.trainer_has_devices = True
        await together(engine.release_memory() for engine in self.engines)

    async def publish(self, version: int) -> PublicationReport:
        """A publication to engines that take memory for the weights before it, and the rest after it: beside the
        rest, caches above all, the trainer's buffers may have no room."""
        if not self.trainer_has_devices:
            return await self.publish_weights(version)
        start = asyncio.get_running_loop().time()
        await together(engine.resume_memory(weights_only=True) for engine in self.engines)
        report = await self.publish_weights(version)
        await together(engine.resume_memory() for engine in self.engines)
        self.trainer_has_devices = False
        self.admission.release()
        return replace(report, seconds=asyncio.get_running_loop().time() - start)

    async def to_engines(self, version: int) -> None:
        """After a collection without a step: engines have lost the weights that they are to go on with."""
        if self.trainer_has_devices:
            await self.publish(version)
