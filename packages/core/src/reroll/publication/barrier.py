"""The mode in which nothing is in flight while weights change."""

from __future__ import annotations

import asyncio
import time

from reroll.api import PublicationContext, PublicationMode, PublicationReport, RerollError
from reroll.workers.together import together


class Barrier(PublicationMode):
    """Admission stops, all in flight finishes, every engine loads, admission resumes.

    Every group's tokens come from one version.
    """

    name = "barrier"
    homogeneous_groups = True

    async def publish(self, context: PublicationContext) -> PublicationReport:
        start = time.perf_counter()
        report = PublicationReport(version=context.version, mode=self.name)
        report.in_flight = sum(context.router.in_flight(engine) for engine in context.engines)
        context.admission.close()
        try:
            async with asyncio.timeout(context.timeout) as limit:
                await context.admission.drained()
                paused = time.perf_counter()
                report.num_bytes = await context.transport.begin(context.source, context.version)
                # All engines hold the new tensors before the first one serves them.
                await together(context.transport.stage(engine) for engine in context.engines)
                await together(context.transport.commit(engine, context.version) for engine in context.engines)
                await together(engine.flush_cache() for engine in context.engines)
        except TimeoutError:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            raise RerollError(
                f"publication of version {context.version} took longer than {context.timeout:g} s; raise "
                "serving.publication_timeout, or look into the logs of the workers"
            ) from None
        finally:
            try:
                await context.transport.finish()
            finally:
                context.admission.open()
        report.engines = [engine.address for engine in context.engines]
        report.pause_seconds = (time.perf_counter() - paused) * len(context.engines)
        report.seconds = time.perf_counter() - start
        return report
