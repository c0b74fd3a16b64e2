"""Steps that several modes share. The modes import it when they run: `plan` looks at their classes, and must not wait
for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from reroll.api import PublicationContext, PublicationReport
from reroll.workers.together import together

__all__ = ["end_of", "now", "offer_and_stage", "together"]


async def offer_and_stage(context: PublicationContext, report: PublicationReport) -> None:
    """Brings the new tensors to all engines at once. What they serve does not change."""
    report.num_bytes = await context.transport.begin(context.source, context.version)
    await together(context.transport.stage(engine) for engine in context.engines)


async def end_of(work: Callable[[], Awaitable[object]]) -> float:
    """Does the work, and says when it was done."""
    await work()
    return now()


def now() -> float:
    return asyncio.get_running_loop().time()
