"""The loop of a generation: every trial that is not finished, so many at a time."""

from __future__ import annotations

from reroll.generation.session import GenerationSession


async def generate(session: GenerationSession) -> None:
    """Runs what is left; returns when all of it is on disk."""
    async with session.working():
        async for job in session.jobs():
            await session.begin(job)
