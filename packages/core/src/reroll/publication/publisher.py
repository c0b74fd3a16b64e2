"""The publisher: runs the selected mode with the selected transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reroll.api import (
    Admission,
    Engine,
    PublicationContext,
    PublicationMode,
    PublicationReport,
    Router,
    Transport,
    WeightSource,
)


@dataclass
class Publisher:
    """Brings the engines to the source's weights. `timeout` in seconds."""

    mode: PublicationMode
    transport: Transport
    source: WeightSource
    engines: Sequence[Engine]
    router: Router
    admission: Admission
    timeout: float

    async def publish(self, version: int) -> PublicationReport:
        """One publication; raises what the mode raises, TimeoutError past the timeout included."""
        return await self.mode.publish(
            PublicationContext(
                version=version,
                engines=self.engines,
                router=self.router,
                admission=self.admission,
                transport=self.transport,
                source=self.source,
                timeout=self.timeout,
            )
        )
