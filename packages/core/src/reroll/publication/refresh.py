"""The mode in which responses go on under new weights."""

from __future__ import annotations

from reroll.api import PublicationContext, PublicationMode, PublicationReport


class Refresh(PublicationMode):
    """Engines decode while the new tensors are brought, then each stops where it is, computes the caches of its
    running requests again and goes on.

    Nothing waits for the longest response. A response's tokens may come from several versions; its spans say which.
    """

    name = "refresh"
    homogeneous_groups = False

    async def publish(self, context: PublicationContext) -> PublicationReport:
        from reroll.publication.steps import offer_and_stage, together

        report = PublicationReport(version=context.version, mode=self.name)
        await offer_and_stage(context, report)
        costs = await together(
            context.transport.commit(engine, context.version, recompute=True) for engine in context.engines
        )
        report.pause_seconds = sum(cost.pause_seconds for cost in costs)
        report.recompute_seconds = sum(cost.recompute_seconds for cost in costs)
        return report
