"""Admission: the gate through which whole groups reach the engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class GroupAdmission:
    """Lets groups in while it is open, and knows when the last one has left.

    Admission is per group: once one sibling is in, all are, so that draining cannot strand a group.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def drained(self) -> None:
        await self._idle.wait()

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Holds one group's place."""
        while not self._open.is_set():
            await self._open.wait()
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()
