"""The harness for models that call tools: turns and results take turns until the model has nothing more to ask."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import Field

from reroll.api import (
    Completion,
    Config,
    GenerationRequest,
    Harness,
    HarnessContext,
    Message,
    Node,
    RenderedPrompt,
    Task,
    Trace,
)
from reroll.rollouts.harnesses import sampled_node
from reroll.rollouts.seeds import turn_seed
from reroll.rollouts.tool_running import ToolResult, run_tool
from reroll.tasks.tool_calls import THOUGHT_END, call_id
from reroll.workers.together import together


class ToolLoopConfig(Config):
    max_turns: int = Field(8, gt=0)
    """Most turns that the model takes, summaries apart. What the last one calls is not run any more."""
    tool_timeout: float = Field(30.0, gt=0)
    """Seconds that one call may take."""
    parallel_tool_calls: bool = True
    """Runs all calls of a turn at once; otherwise one after the other. Results come in the order of the calls."""
    max_tool_result_chars: int = Field(8000, gt=0)
    """Longer results are cut to so many characters, with a note."""
    compact_at: int | None = Field(None, gt=0)
    """Once the next prompt has more tokens, the model is asked for a summary and the conversation begins again from
    it; by default it never does."""
    max_compactions: int = Field(4, gt=0)
    """Most new beginnings of one conversation, which then goes on to its real limit."""
    summary_prompt: str = Field("Summarise the work so far.", min_length=1)
    """What asks for the summary."""


class ToolLoop(Harness):
    """A conversation in which the model may call the task's tools.

    Tokens stay as they were sampled: a turn is prompted with all that came before it and what the chat template puts
    behind. Where the template renders an earlier turn differently, the trace has a new root with the conversation as it
    is rendered now.
    """

    name = "tool_loop"
    calls_tools = True
    Config = ToolLoopConfig

    async def run(self, task: Task, rendered: RenderedPrompt, context: HarnessContext) -> Trace:
        return await Conversation(self.config, task, context).run(rendered)


class _Prompt(NamedTuple):
    """What the model is to be shown next: tokens in addition to those of the branch, or a new root."""

    messages: list[Message]
    token_ids: list[int]
    extends: bool
    total: int


class Conversation:
    """One trace in the making, which a harness may break off: cancel `run`, and `end` it.

    `messages` and `token_ids` are those of the branch that is being continued.
    """

    def __init__(self, config: ToolLoopConfig, task: Task, context: HarnessContext) -> None:
        self.config = config
        self.task = task
        self.context = context
        self.trace = Trace(id=context.trace_id, task=task)
        self.messages: list[Message] = list(task.messages)
        self.token_ids: list[int] = []
        self.requests = 0
        self.turns = 0
        self.calls = 0
        self.errors = 0
        self.malformed = 0
        self.compactions = 0
        self.compacts = config.compact_at is not None
        self.call_ids = {call["id"] for message in task.messages for call in _calls(message) if "id" in call}
        self.numbers = itertools.count()

    async def run(self, rendered: RenderedPrompt) -> Trace:
        self._begin(self.messages, rendered.token_ids)
        ended = None
        while ended is None:
            ended = await self._turn()
        return self.end(ended)

    def end(self, stop_condition: str) -> Trace:
        """The trace of what was said so far; what the model was shown and did not answer any more is left out."""
        sampled = [index for index, node in enumerate(self.trace.nodes) if node.sampled]
        if sampled:
            del self.trace.nodes[sampled[-1] + 1 :]
        self.trace.stop_condition = stop_condition
        self.trace.is_completed = stop_condition != "abort"
        self.trace.metrics = {
            "tools/turns": float(self.turns),
            "tools/calls": float(self.calls),
            "tools/errors": float(self.errors),
            "tools/malformed": float(self.malformed),
            "tools/compactions": float(self.compactions),
        }
        return self.trace

    async def _turn(self) -> str | None:
        """One turn of the model and the results of its calls; gives the stop condition once there is one."""
        completion = await self._sample()
        self.turns += 1
        turn = self.context.parse(completion.output_ids)
        self.malformed += turn.malformed
        self._say(turn.message)
        if completion.finish_reason != "stop":
            return completion.finish_reason
        if not _calls(turn.message):
            return "stop"
        if self.turns == self.config.max_turns:
            return "max_turns"
        prompt = self._prompt(await self._results(turn.message))
        if self.compacts and prompt.total > (self.config.compact_at or 0):
            asking = self._prompt([*prompt.messages, {"role": "user", "content": self.config.summary_prompt}])
            if self._room(asking.total):
                return await self._compact(asking)
        if not self._room(prompt.total):
            return "length"
        self._enter(prompt)
        return None

    async def _sample(self) -> Completion:
        """The model goes on from the branch's tokens; its answer is the branch's last node."""
        name = self.context.trace_id if self.requests == 0 else f"{self.context.trace_id}-{self.requests}"
        sampling = replace(
            self.context.sampling,
            # A first prompt that leaves no room is for the engine to refuse, as it is in other harnesses.
            max_new_tokens=self._room(len(self.token_ids)) or self.context.sampling.max_new_tokens,
            seed=turn_seed(self.context.sampling.seed, self.requests),
        )
        completion = await self.context.generate(GenerationRequest(name, list(self.token_ids), sampling))
        self.trace.nodes.append(sampled_node(completion, len(self.trace.nodes) - 1, self.context))
        self.token_ids += completion.output_ids
        timing = dict(completion.timing)
        self.trace.timing = timing if self.requests == 0 else {**self.trace.timing, **_end(timing)}
        self.requests += 1
        return completion

    def _say(self, message: Message) -> None:
        """The last node's message, its calls numbered so that none is called as another one of the conversation."""
        for call in _calls(message):
            while call["id"] in self.call_ids:
                call["id"] = call_id(next(self.numbers))
            self.call_ids.add(call["id"])
        self.trace.nodes[-1].message = message
        self.messages.append(message)

    async def _results(self, message: Message) -> list[Message]:
        """A tool message for each call, in order."""
        calls = _calls(message)
        running = (self._run(call["function"]) for call in calls)
        results = await together(running) if self.config.parallel_tool_calls else [await result for result in running]
        self.calls += len(calls)
        self.errors += sum(result.failed for result in results)
        return [
            {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": result.text}
            for call, result in zip(calls, results, strict=True)
        ]

    async def _run(self, function: dict[str, Any]) -> ToolResult:
        arguments = copy.deepcopy(function["arguments"])  # what the model said stays as it is, whatever a tool does
        limits = self.config.tool_timeout, self.config.max_tool_result_chars
        return await run_tool(self.context.tools, function["name"], arguments, *limits)

    def _prompt(self, added: list[Message]) -> _Prompt:
        """What the model is shown once these messages are added."""
        conversation = replace(self.task, prompt=[*self.messages, *added])
        appended = self.context.extend(conversation, self.token_ids)
        if appended is not None:
            return _Prompt(added, appended, True, len(self.token_ids) + len(appended))
        token_ids = list(self.context.render(conversation).token_ids)
        return _Prompt(added, token_ids, False, len(token_ids))

    def _enter(self, prompt: _Prompt) -> None:
        """Adds what the model is shown to the trace."""
        if not prompt.extends:
            self._begin([*self.messages, *prompt.messages], prompt.token_ids, "rendering")
            return
        self.messages += prompt.messages
        for message in prompt.messages:
            self.trace.nodes.append(Node(len(self.trace.nodes) - 1, message, False, [], []))
        self._show(prompt.token_ids)

    def _begin(self, messages: list[Message], token_ids: Sequence[int], origin: str | None = None) -> None:
        """A root, and the messages that follow it up to the model's next turn."""
        start = len(self.trace.nodes)
        for index, message in enumerate(messages):
            parent = start + index - 1 if index else None
            self.trace.nodes.append(Node(parent, message, False, [], []))
        self.trace.nodes[start].origin = origin
        self.messages = list(messages)
        self.token_ids = []
        self._show(token_ids)

    def _show(self, token_ids: Sequence[int]) -> None:
        """Messages are rendered together: the last one's node carries the tokens of all."""
        self.trace.nodes[-1].token_ids = list(token_ids)
        self.trace.nodes[-1].mask = [False] * len(token_ids)
        self.token_ids += token_ids

    def _room(self, tokens: int) -> int:
        """Most tokens that a turn may have after so many."""
        most = self.context.max_turn_tokens or self.context.sampling.max_new_tokens
        if self.context.max_context is None:
            return most
        return max(min(most, self.context.max_context - tokens), 0)

    async def _compact(self, asking: _Prompt) -> str | None:
        """Has the model sum up its work, and begins again from that."""
        self._enter(asking)
        completion = await self._sample()
        if completion.finish_reason == "abort":
            return "abort"
        self.compactions += 1
        said = str(self.trace.nodes[-1].message["content"])
        prompt = with_summary(self.task, said.rpartition(THOUGHT_END)[2].strip())
        rendered = self.context.render(prompt)
        if not self._room(len(rendered.token_ids)):
            return "length"
        self._begin(prompt.messages, rendered.token_ids, "compaction")
        over = len(rendered.token_ids) > (self.config.compact_at or 0)
        self.compacts = not over and self.compactions < self.config.max_compactions
        return None


def with_summary(task: Task, summary: str) -> Task:
    """The task with what was done so far at the end of its last user message."""
    note = f"\n\nWork so far: {summary}"
    if isinstance(task.prompt, str):
        return replace(task, prompt=task.prompt + note)
    messages = list(task.prompt)
    last = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=None)
    if last is None:
        return replace(task, prompt=[*messages, {"role": "user", "content": note.strip()}])
    content = messages[last].get("content")
    parts = [*content, {"type": "text", "text": note}] if isinstance(content, list) else f"{content or ''}{note}"
    messages[last] = {**messages[last], "content": parts}
    return replace(task, prompt=messages)


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _end(timing: dict[str, float]) -> dict[str, float]:
    return {"end": timing["end"]} if "end" in timing else {}
