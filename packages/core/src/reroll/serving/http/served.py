"""The engine as the routes see it: requests by id, weight versions by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from reroll.api import Completion, GenerationRequest, RenderedPrompt, RequestRefused, Task
from reroll.models.files import ModelFiles
from reroll.serving.http.gate import Aborted, Gate, Ticket
from reroll.serving.local.engine import LocalEngine
from reroll.workers.together import together

FIRST_VERSION = "default"
"""What SGLang calls the weights that it was started with."""


class Renderer(Protocol):
    """Turns messages into tokens and tokens into text; `reroll.tasks.render.Renderer` is one."""

    tokenizer: Any

    def render(self, task: Task) -> RenderedPrompt: ...


class NamedSpan(NamedTuple):
    """Output tokens `[start, end)` that were generated under the weights called `version`."""

    version: str
    start: int
    end: int


@dataclass
class Session:
    """Between `/begin_weight_update` and `/end_weight_update`.

    Attributes:
        staged: whether tensors wait to be served.
        version: name that the tokens after the session get; None for the one that counts now.
    """

    staged: bool = False
    version: str | None = None


@dataclass
class Versions:
    """Engines count versions, clients name them.

    A commit and a new name each begin a new number, so that an engine's spans tell them apart.
    """

    names: dict[int, str] = field(default_factory=lambda: {0: FIRST_VERSION})
    current: int = 0

    @property
    def name(self) -> str:
        return self.names[self.current]

    def next(self, name: str | None) -> int:
        """A number for what is about to be served; it counts once `current` is set to it."""
        number = max(self.names) + 1
        self.names[number] = self.name if name is None else name
        return number

    def spans(self, completion: Completion) -> list[NamedSpan]:
        found: list[NamedSpan] = []
        for number, start, end in completion.weight_versions:
            name = self.names[number]
            if found and found[-1].version == name:
                found[-1] = NamedSpan(name, found[-1].start, end)
            else:
                found.append(NamedSpan(name, start, end))
        return found


class Served:
    """One model that is served.

    Args:
        engine: started with version 0 and without EOS tokens of its own, since every request says by itself whether
            it ends at them.
        model: what clients call it.
    """

    def __init__(
        self, engine: LocalEngine, files: ModelFiles, renderer: Renderer, model: str, context_len: int
    ) -> None:
        self.engine = engine
        self.files = files
        self.renderer = renderer
        self.model = model
        self.context_len = context_len
        self.started = time.time()
        self.gate = Gate()
        self.versions = Versions()
        self.session: Session | None = None
        self._tickets: dict[str, Ticket] = {}

    @property
    def weight_version(self) -> str:
        """What clients are told: within a session, already the name that its end will serve."""
        pending = self.session.version if self.session else None
        return self.versions.name if pending is None else pending

    async def generate(self, request: GenerationRequest) -> Completion:
        """Waits at the gate, then for the engine; RequestRefused if this request cannot be served."""
        name = request.request_id
        if name in self._tickets:
            raise RequestRefused(f"rid is {name!r}, which is in flight already; give every request its own")
        ticket = self._tickets[name] = Ticket()
        try:
            async with self.gate.request(ticket):
                return await self.engine.generate(request)
        except Aborted:
            return Completion(name, [], [], [], "abort", request.sampling.seed)
        finally:
            del self._tickets[name]

    async def generate_all(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """All of them, or the first refusal, after which nothing of them goes on."""
        names = [request.request_id for request in requests]
        if len(set(names)) < len(names):
            raise RequestRefused(f"rid gives {len(names)} requests {len(set(names))} names; give each its own")
        return await together(self.generate(request) for request in requests)

    async def abort(self, rid: str) -> None:
        """Ends the request and, as SGLang does, all whose ids begin with its id."""
        if rid not in self._tickets:
            return
        await self._abort([name for name in self._tickets if name.startswith(rid)])

    async def abort_all(self) -> None:
        await self._abort(list(self._tickets))

    async def _abort(self, names: list[str]) -> None:
        for name in names:
            if name in self._tickets:
                await self.gate.abort(self._tickets[name])
        # What passed the gate in this turn of the loop reaches the worker in the next one.
        await asyncio.sleep(0)
        for name in names:
            if name in self._tickets:
                await self.engine.abort(name)

    async def rename(self, version: str) -> None:
        """The weights that are served get another name; within a session, those that its end serves."""
        if self.session is not None:
            self.session.version = version
        elif version != self.versions.name:
            number = self.versions.next(version)
            await self.engine.count_as(number)
            self.versions.current = number

    async def commit(self, version: str | None) -> None:
        """Serves what was staged, under the name; EngineError leaves weights and name as they were."""
        number = self.versions.next(version)
        await self.engine.commit_weights(number)
        self.versions.current = number

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self.renderer.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    @property
    def model_directory(self) -> Path:
        return self.files.directory
