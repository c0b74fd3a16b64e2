"""The mode in which nothing is in flight while weights change."""

from __future__ import annotations

from functools import partial

from reroll.api import PublicationContext, PublicationMode, PublicationReport


class Barrier(PublicationMode):
    """Admission stops, all in flight finishes while the new tensors are brought, every engine loads, admission
    resumes.

    Every group's tokens come from one version, and all engines change together.
    """

    name = "barrier"
    homogeneous_groups = True

    async def publish(self, context: PublicationContext) -> PublicationReport:
        from reroll.publication.steps import end_of, now, offer_and_stage, together

        report = PublicationReport(version=context.version, mode=self.name)
        context.admission.close()
        drained, _ = await together(
            [end_of(context.admission.drained), end_of(partial(offer_and_stage, context, report))]
        )
        await together(context.transport.commit(engine, context.version) for engine in context.engines)
        await together(engine.flush_cache() for engine in context.engines)
        context.admission.open()
        report.pause_seconds = (now() - drained) * len(context.engines)
        return report
