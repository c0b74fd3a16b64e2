"""The mode in which engines take new weights one after another."""

from __future__ import annotations

from functools import partial

from reroll.api import PublicationContext, PublicationMode, PublicationReport


class EngineDrain(PublicationMode):
    """Each engine in turn gets no new groups, finishes those it has, loads and returns; the others go on.

    Every group's tokens come from one version. With a single engine new groups wait meanwhile.
    """

    name = "engine_drain"
    homogeneous_groups = True

    async def publish(self, context: PublicationContext) -> PublicationReport:
        from reroll.publication.steps import end_of, now, together

        report = PublicationReport(version=context.version, mode=self.name)
        report.num_bytes = await context.transport.begin(context.source, context.version)
        for engine in context.engines:
            context.router.exclude(engine)
            drained, _ = await together(
                [end_of(partial(context.router.drained, engine)), end_of(partial(context.transport.stage, engine))]
            )
            await context.transport.commit(engine, context.version)
            await engine.flush_cache()
            context.router.include(engine)
            report.pause_seconds += now() - drained
        return report
