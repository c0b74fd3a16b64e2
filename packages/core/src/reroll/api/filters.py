"""Filters: skip a prompt before generation, or decide about a group after scoring."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from reroll.api.component import Component
from reroll.api.context import RunContext
from reroll.api.records import Decision
from reroll.api.sections import RunFile
from reroll.api.tasks import RenderedPrompt, Task
from reroll.api.traces import Group


class PromptFilter(Component):
    """Skips prompts before they are dispatched; a skipped prompt never enters the ledger."""

    fingerprint: str = ""
    """Identifies what the filter would skip; recorded in the run's context."""
    warn: Callable[[str], None] = staticmethod(lambda text: None)
    """To be called with what the user should know; the run sets it before `prepare`."""

    @classmethod
    def from_run(cls, run: RunFile) -> PromptFilter | None:
        """A filter for this run although `data.prompt_filters` does not list it, because a section of its package asks
        for it. Every installed filter that is not listed is asked."""
        return None

    def prepare(self) -> None:
        """Loads what the filter needs; `fingerprint` is read after it, and goes into the run's context."""
        return

    def open(self, context: RunContext) -> None:
        """Called once before the first prompt; raise to refuse the run."""
        return

    @abstractmethod
    def skip(self, task: Task, rendered: RenderedPrompt) -> str | None:
        """The reason to skip the prompt, or None."""


class GroupFilter(Component):
    """Decides whether a scored group is trained on."""

    @abstractmethod
    def decide(self, group: Group) -> Decision: ...
