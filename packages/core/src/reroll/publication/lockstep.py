"""Streams that are sent at the same time, bucket by bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Lockstep:
    """Has every stream wait with a bucket until the others have sent those before it: the trainer gathers a bucket for
    all of them at once, but keeps only the last one, and would gather each one anew for a stream that is behind.

    Args:
        patience: seconds that a bucket waits for the other streams; whoever is behind then is not waited for again.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._next: dict[str, int] = {}
        self._moved = asyncio.Event()

    @contextmanager
    def among(self, name: str) -> Iterator[None]:
        """While the stream may be sent."""
        self._next[name] = 0
        try:
            yield
        finally:
            self._next.pop(name, None)
            self._moved.set()

    async def turn(self, name: str, number: int) -> None:
        """Waits until the stream may send the bucket of this number."""
        if name in self._next:
            self._next[name] = number
            self._moved.set()
        try:
            async with asyncio.timeout(self._patience):
                while self._behind(number):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            for other in self._behind(number):
                del self._next[other]
            self._moved.set()

    def _behind(self, number: int) -> list[str]:
        return [name for name, reached in self._next.items() if reached < number]
