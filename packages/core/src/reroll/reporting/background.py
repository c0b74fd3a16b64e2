"""A tracker whose back end may have to wait for something: a thread of its own does the waiting."""

from __future__ import annotations

import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reroll.api import RerollError, RunContext, Tracker

CLOSE_SECONDS = 60.0
"""How long the end of a run waits for what is pending."""
MOST_PENDING = 10_000
"""Calls that may wait for the back end; it has hung where there are more."""


class BackgroundTracker(Tracker):
    """Calls go, in order, to a thread that may wait for as long as it likes. What fails there is raised by the next
    call, and nothing further is passed on."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_PENDING)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def begin(self, context: RunContext) -> None:
        """`open` in the thread."""

    @abstractmethod
    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """`log` in the thread."""

    def write_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """`log_groups` in the thread."""

    @abstractmethod
    def end(self) -> None:
        """`close` in the thread; not called where something failed before."""

    def open(self, context: RunContext) -> None:
        self._thread = threading.Thread(target=self._work, name=f"tracker-{self.name}", daemon=True)
        self._thread.start()
        self._pass_on(lambda: self.begin(context))

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        self._pass_on(lambda: self.write(step, metrics))

    def log_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        self._pass_on(lambda: self.write_groups(step, groups))

    def close(self) -> None:
        if self._thread is None:
            return
        self._pass_on(self.end)
        self._pass_on(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            raise RerollError(f"not finished within {CLOSE_SECONDS:g} s; what was not sent stays where it was written")
        self._raise_failure()

    def _pass_on(self, call: Callable[[], None] | None) -> None:
        self._raise_failure()
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            raise RerollError(f"has not taken the last {MOST_PENDING} calls: its back end hangs") from None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:
                self._failure = error
                return
