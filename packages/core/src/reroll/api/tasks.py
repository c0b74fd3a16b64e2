"""Tasks and the sets that give them."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from reroll.api.component import Component
from reroll.api.errors import Problem, TaskError

if TYPE_CHECKING:
    from reroll.api.harnesses import Harness
    from reroll.api.sections import RunFile
    from reroll.api.selection import Selection
    from reroll.api.verifiers import Verifier

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
        source_id, source_task: of a task that was derived from a saved rollout: that rollout's id, and its `task` as it
            was saved, which has a source of its own where derivations are chained. None otherwise.
    """

    prompt: list[Message] | str
    targets: Mapping[str, Any]
    source_dataset: str
    source_row: int
    prepared_sample_id: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source_id: str | None = None
    source_task: Mapping[str, Any] | None = None

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


class Judge(NamedTuple):
    """A verifier that a task set brings along.

    Attributes:
        weight: of its score in the reward.
        distribution: what errors name beside the verifier.
    """

    verifier: Verifier
    weight: float
    distribution: str


@dataclass(frozen=True)
class Binding:
    """What a lazy task set makes of a task at the moment at which it is dispatched.

    Attributes:
        task: what the model is asked.
        judged: the task that verifiers are shown in its place; None for `task` itself.
        harness: runs the conversations; None for the one that the run file selects.
        stop, stop_token_ids: what ends a response, beside the model's own ids; None for what the run file says.
        metrics: every trace of the group reports them.
    """

    task: Task
    judged: Task | None = None
    harness: Harness | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class TaskSet(Component):
    """A named list of tasks, sized (`len`) or streaming (`len` raises TypeError).

    A sized set is read by position, in any order and from any process, so `task(i)` must depend on
    nothing but the configuration and `i`.

    A lazy set gives stand-ins: what a task asks is found by `bind`, once it is dispatched. Binding runs in a thread, so
    that it may read files, and several may run at once.
    """

    lazy: ClassVar[bool] = False
    """Whether tasks have to be bound before they can be rendered."""
    container: ClassVar[bool] = False
    """Whether tasks run in containers of their own, whose state is not saved with a rollout."""
    patience: float = 60.0
    """Seconds after which a dispatch ends as failed where `bind` has nothing to give."""
    warn: Callable[[str], None] = staticmethod(lambda text: None)
    """To be called with what the user should know, from any thread; the run sets it before `open`."""

    @property
    def online(self) -> bool:
        """Whether tasks come to be while the run goes on, so that there is nothing to check before it starts."""
        return False

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        """Faults that show beside the rest of the run file, without reading tasks; asked by `reroll plan`, too.

        Args:
            config: the set's own.
            key: where it stands in the run file; keys of problems begin with it.
        """
        yield from ()

    def open(self, run: RunFile, output: Path | None, seed: int) -> None:
        """Called once, before the first task.

        Args:
            run: the run file that selects the set.
            output: the run's folder; None where no run is started, as for `reroll validate`.
            seed: `data.seed`, or what stands for it.
        """
        return

    def judges(self) -> Mapping[str, Judge] | None:
        """Verifiers by the names that targets use; None, the default, for those of the run file. Asked after `open`."""
        return None

    def bind(self, task: Task, request: int, tries: int = 0) -> Binding | None:
        """For lazy sets: what is dispatched for the stand-in `task`; None where there is nothing at the moment.

        Args:
            request: numbers the dispatches of this stand-in, from 0; with the seed, what a draw by chance follows from.
            tries: what was bound for this dispatch before and is not to be dispatched, being too long for example.
        """
        raise NotImplementedError

    def origin(self) -> Selection | None:
        """The set that its tasks are of, where it only points at those of another one; None where they are its own.
        Asked after `open`."""
        return None

    def recover(self, saved: Mapping[str, Any]) -> Task:
        """The task that a saved rollout's `task` describes, for judging what was derived from it; TaskError where it
        says too little. By default it holds the fields of `Task`. May be asked of a set that was not opened."""
        return task_from_record(saved)

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


def task_from_record(saved: Mapping[str, Any]) -> Task:
    """A task from its saved fields; TaskError names the first that is missing or of another kind."""
    kinds: dict[str, Any] = {
        "prompt": (str, list),
        "targets": Mapping,
        "source_dataset": str,
        "source_row": int,
        "prepared_sample_id": str,
    }
    for name, kind in kinds.items():
        if not isinstance(saved.get(name), kind):
            found = f"{name} = {saved[name]!r:.60}" if name in saved else f"no {name}"
            raise TaskError(f"a saved task has {found}; it was saved by another product, or by another version")
    for name, kind in {"tools": list, "metadata": Mapping}.items():
        if not isinstance(saved.get(name), kind | None):
            raise TaskError(f"a saved task has {name} = {saved[name]!r:.60}, which no task has")
    known = {item.name for item in fields(Task)}
    return Task(**{name: value for name, value in saved.items() if name in known and value is not None})


class Tool(Component):
    """A function that a model may call during a rollout."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The tool as the chat template expects it: name, description, JSON schema of arguments."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Runs the tool; an exception becomes the tool message's text."""
