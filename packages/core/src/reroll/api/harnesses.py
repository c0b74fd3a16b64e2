"""Harnesses turn a task into a conversation with an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from reroll.api.component import Component
from reroll.api.engines import Completion, GenerationRequest, SamplingParams
from reroll.api.tasks import Message, RenderedPrompt, Task, Tool
from reroll.api.traces import Trace


@dataclass(frozen=True)
class AssistantTurn:
    """What a model's turn says.

    Attributes:
        message: `role`, `content`, and `tool_calls` where it makes any, in the chat template's form.
        malformed: something was written as a call and cannot be read as one; it stays in the content.
    """

    message: Message
    malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class HarnessContext:
    """What a harness may use while it makes one trace.

    Attributes:
        generate: sends a request to the engine that serves this trace's group.
        render: the shared renderer: messages or text → prompt tokens.
        decode: token ids → text, special tokens left out.
        sampling: the response's sampling parameters, its own seed included; limited to what the prompt leaves room for.
        max_context: most tokens of prompt and response together, None for no bound.
        max_turn_tokens: most tokens of one turn, for harnesses that take several: a later prompt may leave more room.
            None for that of `sampling`.
        tools: the tools of the task, by the names that the model calls.
        parse: sampled tokens → what they say, in the model's own format of tool calls.
        extend: a task whose prompt is the conversation so far, and the tokens that the model has seen and sampled → the
            tokens to append so that it can go on; None where the chat template renders the conversation differently
            from what these tokens say.
    """

    generate: Callable[[GenerationRequest], Awaitable[Completion]]
    render: Callable[[Task], RenderedPrompt]
    decode: Callable[[list[int]], str]
    sampling: SamplingParams
    max_context: int | None
    trace_id: str
    max_turn_tokens: int | None = None
    tools: Mapping[str, Tool] = field(default_factory=dict)
    parse: Callable[[Sequence[int]], AssistantTurn]
    extend: Callable[[Task, Sequence[int]], list[int] | None]


class Harness(Component):
    """Runs one conversation."""

    resumable: ClassVar[bool] = True
    """Whether a conversation may begin with the messages of another one, as replay asks for it; False where a harness
    has state beside the messages."""
    calls_tools: ClassVar[bool] = False
    """Whether it runs the tools that a model calls."""

    def lacks(self) -> str | None:
        """What it cannot run without and does not find here, such as a package or a service, and the remedy; None where
        nothing is missing. Asked by `reroll validate` and before a run starts."""
        return None

    @abstractmethod
    async def run(self, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> Trace:
        """One trace of `task`; an exception is recorded as the trace's error."""
