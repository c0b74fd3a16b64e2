"""The cursor: which task comes next, and how often it has come before."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from reroll.api import PluginError, PromptFilter, RenderedPrompt, Task, TaskError, TaskSet


class Dispatch(NamedTuple):
    """A task to dispatch. `attempt` counts its earlier dispatches in this run."""

    task: Task
    rendered: RenderedPrompt
    attempt: int


class Cursor:
    """Walks a task set in an order drawn anew for every epoch; skipped prompts are moved past.

    Args:
        task_set: sized sets are shuffled by `seed`, streaming ones keep their order.
        render: the shared renderer.
        filters: name → prompt filter; the first that gives a reason skips the prompt.
        max_prompt_len: longer prompts are skipped with the reason `too_long`.
        epochs: passes over the set, None for no end.
    """

    def __init__(
        self,
        task_set: TaskSet,
        render: Callable[[Task], RenderedPrompt],
        filters: Mapping[str, PromptFilter],
        max_prompt_len: int,
        seed: int,
        shuffle: bool = True,
        epochs: int | None = None,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self._task_set = task_set
        self._render = render
        self._filters = filters
        self._max_prompt_len = max_prompt_len
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._attempts: Counter[str] = Counter()
        self._given_back: deque[Dispatch] = deque()
        self._walk = self._prompts()

    def take(self) -> Dispatch | None:
        """The next dispatch, one that was given back before a new one; None when the data has run out."""
        found = self._given_back.popleft() if self._given_back else next(self._walk, None)
        if found is None:
            return None
        attempt = self._attempts[found.task.key]
        self._attempts[found.task.key] += 1
        return found._replace(attempt=attempt)

    def give_back(self, dispatch: Dispatch) -> None:
        """The task is to be dispatched again, as its next attempt."""
        self._given_back.append(dispatch)

    def _prompts(self) -> Iterator[Dispatch]:
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            kept = 0
            for task in self._order(epoch):
                rendered = self._render(task)
                if reason := self._skip(task, rendered):
                    self.skipped[reason] += 1
                    continue
                kept += 1
                yield Dispatch(task, rendered, 0)
            if not kept:
                reasons = ", ".join(f"{reason}: {count}" for reason, count in self.skipped.items()) or "it is empty"
                raise TaskError(f"no task of {self._task_set.name!r} can be dispatched ({reasons})")
            epoch += 1

    def _order(self, epoch: int) -> Iterator[Task]:
        try:
            size = len(self._task_set)
        except TypeError:
            yield from self._task_set
            return
        order = list(range(size))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
        for index in order:
            yield self._task_set.task(index)

    def _skip(self, task: Task, rendered: RenderedPrompt) -> str | None:
        if len(rendered.token_ids) > self._max_prompt_len:
            return "too_long"
        for name, prompt_filter in self._filters.items():
            try:
                reason = prompt_filter.skip(task, rendered)
            except Exception as error:
                raise PluginError(f"prompt filter {name!r} raised {type(error).__name__}: {error}") from error
            if reason:
                return f"{name}: {reason}"
        return None
