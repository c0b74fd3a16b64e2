"""Tasks and the sets that give them."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reroll.api.component import Component

Message = dict[str, Any]
"""A chat message: `role`, `content`, and where they apply `tool_calls`, `tool_call_id`, `name`."""


@dataclass(frozen=True)
class Task:
    """One prompt, what its verifiers need to judge an answer, and where it comes from.

    Attributes:
        prompt: chat messages, or plain text that is tokenised without a chat template.
        targets: verifier name → what that verifier compares an answer with.
        source_dataset, source_row: file or task set, and row within it, counted from 0.
        prepared_sample_id: identity given when the data was prepared; survives reordering.
        tools: tool schemas offered to the model, in the chat template's form.
        metadata: anything else; kept in saved rollouts, never read by the runtime.
    """

    prompt: list[Message] | str
    targets: Mapping[str, Any]
    source_dataset: str
    source_row: int
    prepared_sample_id: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[Message]:
        """The prompt as messages; a plain text is one user message."""
        return [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt

    @property
    def key(self) -> str:
        """Identity within one data source: what seeds and the ledger use."""
        return f"{self.source_dataset}:{self.prepared_sample_id}"


@dataclass(frozen=True)
class RenderedPrompt:
    """A task's prompt as the model reads it.

    Attributes:
        text: the prompt with the chat template applied once.
        token_ids: its tokens, at most one of them a beginning-of-sequence token.
        template_sha256: digest of the chat template; empty for plain-text prompts.
        tokenizer_sha256: digest of `tokenizer.json`.
    """

    text: str
    token_ids: tuple[int, ...]
    template_sha256: str
    tokenizer_sha256: str


class TaskSet(Component):
    """A named list of tasks, sized (`len`) or streaming (`len` raises TypeError).

    A sized set is read by position, in any order and from any process, so `task(i)` must depend on
    nothing but the configuration and `i`.
    """

    def __len__(self) -> int:
        raise TypeError(f"task set {self.name!r} is streaming: it has no length")

    @abstractmethod
    def task(self, index: int) -> Task:
        """The task at `index`, counted from 0; IndexError past the end of a sized set."""

    def __iter__(self) -> Iterator[Task]:
        index = 0
        while True:
            try:
                yield self.task(index)
            except IndexError:
                return
            index += 1

    def fingerprint(self) -> str:
        """SHA-256 over the prompts and targets of a sized set; recorded with evaluations."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            task = self.task(index)
            digest.update(
                json.dumps([task.key, task.prompt, dict(task.targets)], sort_keys=True, default=repr).encode()
            )
        return digest.hexdigest()


class Tool(Component):
    """A function that a model may call during a rollout."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The tool as the chat template expects it: name, description, JSON schema of arguments."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Runs the tool; an exception becomes the tool message's text."""
