"""Routing: which engine serves a group."""

from __future__ import annotations

from collections.abc import Sequence

from reroll.api import Completion, Engine, EngineError, GenerationRequest


class LeastLoadedRouter:
    """A group goes to the engine with the fewest requests in flight and stays there, so that its siblings share
    the prompt's cache."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = list(engines)
        self._excluded: set[int] = set()
        self._in_flight = [0] * len(self.engines)
        self._pinned: dict[str, int] = {}

    def exclude(self, engine: Engine) -> None:
        self._excluded.add(self.engines.index(engine))

    def include(self, engine: Engine) -> None:
        self._excluded.discard(self.engines.index(engine))

    def pin(self, group: str, engine: Engine) -> None:
        self._pinned[group] = self.engines.index(engine)

    def release(self, group: str) -> None:
        """Forgets a group that has ended."""
        self._pinned.pop(group, None)

    def in_flight(self, engine: Engine) -> int:
        return self._in_flight[self.engines.index(engine)]

    async def generate(self, group: str, request: GenerationRequest) -> Completion:
        """Sends the request to the group's engine."""
        index = self._engine_of(group)
        self._in_flight[index] += 1
        try:
            return await self.engines[index].generate(request)
        finally:
            self._in_flight[index] -= 1

    def _engine_of(self, group: str) -> int:
        index = self._pinned.get(group)
        if index is None:
            usable = [number for number in range(len(self.engines)) if number not in self._excluded]
            if not usable:
                raise EngineError("every engine is out of routing")
            index = self._pinned[group] = min(usable, key=lambda number: (self._in_flight[number], number))
        return index
