"""How many attempts are under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

IN_HAND = 4
"""Attempts that are generated, judged or written at a time, in multiples of those that are generated: verifiers may be
slower for a while without holding the engines up, and no more is held in memory."""


class Slots:
    """Places for attempts that are generated, and for those that are in hand in any way."""

    def __init__(self, generating: int) -> None:
        self._generating = asyncio.Semaphore(generating)
        self._in_hand = asyncio.Semaphore(IN_HAND * generating)

    async def take(self) -> None:
        """Waits until an attempt may begin; `generating` and `done` give its places back."""
        await self._in_hand.acquire()
        await self._generating.acquire()

    @asynccontextmanager
    async def generating(self) -> AsyncIterator[None]:
        """For the time of generation; the place was taken before."""
        try:
            yield
        finally:
            self._generating.release()

    def done(self) -> None:
        self._in_hand.release()
