"""Seconds during which something goes on."""

from __future__ import annotations

import asyncio


class Stopwatch:
    """Adds up the time in which at least one of those who entered has not left. By the event loop's clock."""

    def __init__(self) -> None:
        self._inside = 0
        self._since = 0.0
        self._total = 0.0

    def enter(self) -> None:
        if not self._inside:
            self._since = asyncio.get_running_loop().time()
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._total += asyncio.get_running_loop().time() - self._since

    def run(self, on: bool) -> None:
        """For a watch with one user: switches it."""
        if on and not self._inside:
            self.enter()
        elif not on and self._inside:
            self.leave()

    @property
    def running(self) -> bool:
        return self._inside > 0

    @property
    def seconds(self) -> float:
        now = asyncio.get_running_loop().time() - self._since if self._inside else 0.0
        return self._total + now
