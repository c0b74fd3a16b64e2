"""Binding: what a lazy task set's stand-ins are found to be, in threads of their own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from reroll.api import Binding, PluginError, RenderedPrompt, RerollError, Task, TaskError, TaskSet

MOST_TRIES = 100
POLL_SECONDS = 0.5
"""How often a set that has nothing is asked again, at most."""
THREADS = 2
"""Few, and nobody else's: a thread that waits for a slow disk holds up no other work of the run."""


class Binder:
    """Binds the stand-ins of one lazy set.

    Args:
        skip: the reason to skip a task with its rendered prompt, or None; asked on the event loop.
        skipped: counts those reasons.
        patience: in place of the set's own.
        most_tries: bound tasks in a row that are skipped until a dispatch is given up.
    """

    def __init__(
        self,
        task_set: TaskSet,
        render: Callable[[Task], RenderedPrompt],
        skip: Callable[[Task, RenderedPrompt], str | None],
        skipped: Counter[str],
        patience: float | None = None,
        most_tries: int = MOST_TRIES,
    ) -> None:
        self.why = ""
        """Why the last stand-in could not be bound."""
        self._task_set = task_set
        self._render = render
        self._skip = skip
        self._skipped = skipped
        self._nothing_until = 0.0
        """What grows and had nothing is asked for all that wait at once, not for each of them."""
        self._most_tries = most_tries
        self._patience = task_set.patience if patience is None else patience

    async def bind(self, stand_in: Task, request: int) -> tuple[Binding, RenderedPrompt] | None:
        """What to dispatch for a stand-in, once there is something that need not be skipped; None where there was
        nothing for `patience` seconds, or too much was skipped in a row, as `why` then says."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        tries = 0
        while True:
            found = await loop.run_in_executor(_threads(), self._ask, stand_in, request, tries)
            if found is None:
                left = deadline - loop.time()
                if left <= 0:
                    self.why = "it had nothing" + (f" for {self._patience:g} s" if self._patience else "")
                    return None
                await asyncio.sleep(min(POLL_SECONDS, left))
                continue
            binding, rendered = found
            reason = rendered if isinstance(rendered, str) else self._skip(binding.task, rendered)
            if reason is None:
                assert isinstance(rendered, RenderedPrompt)
                return binding, rendered
            self._skipped[reason] += 1
            tries += 1
            if tries == self._most_tries:
                self.why = f"{tries} prompts in a row were skipped, the last one for {reason}"
                return None

    def _ask(self, stand_in: Task, request: int, tries: int) -> tuple[Binding, RenderedPrompt | str] | None:
        """As `_bind`, but not again where an online set has just had nothing."""
        if not self._task_set.online:
            return self._bind(stand_in, request, tries)
        if time.monotonic() < self._nothing_until:
            return None
        if self._nothing_until:
            self._nothing_until = time.monotonic() + POLL_SECONDS  # this thread asks, the others need not
        found = self._bind(stand_in, request, tries)
        self._nothing_until = time.monotonic() + POLL_SECONDS if found is None else 0.0
        return found

    def _bind(self, stand_in: Task, request: int, tries: int) -> tuple[Binding, RenderedPrompt | str] | None:
        """The binding with its rendered prompt, or with the reason why it cannot be rendered."""
        name = self._task_set.name
        try:
            binding = self._task_set.bind(stand_in, request, tries)
        except RerollError:
            raise
        except Exception as error:
            raise PluginError(f"task set {name!r} raised {type(error).__name__}: {error}") from error
        if binding is None:
            return None
        if not isinstance(binding, Binding):
            raise PluginError(f"task set {name!r} bound a task to {binding!r}; it must give a Binding, or None")
        try:
            return binding, self._render(binding.task)
        except TaskError:
            # A saved conversation that this model's template refuses must not cost the run.
            return binding, "not_rendered"


@lru_cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "bind")
