"""Harnesses turn a task into a conversation with an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reroll.api.component import Component
from reroll.api.engines import Completion, GenerationRequest, SamplingParams
from reroll.api.tasks import RenderedPrompt, Task
from reroll.api.traces import Trace


@dataclass(frozen=True, kw_only=True)
class HarnessContext:
    """What a harness may use while it makes one trace.

    Attributes:
        generate: sends a request to the engine that serves this trace's group.
        render: the shared renderer: messages or text → prompt tokens.
        decode: token ids → text, special tokens left out.
        sampling: the response's sampling parameters, its own seed included.
        max_context: most tokens of prompt and response together, None for no bound.
    """

    generate: Callable[[GenerationRequest], Awaitable[Completion]]
    render: Callable[[Task], RenderedPrompt]
    decode: Callable[[list[int]], str]
    sampling: SamplingParams
    max_context: int | None
    trace_id: str


class Harness(Component):
    """Runs one conversation."""

    @abstractmethod
    async def run(self, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> Trace:
        """One trace of `task`; an exception is recorded as the trace's error."""
