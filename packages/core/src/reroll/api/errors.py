"""Errors that a user can act on: each names the place, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class RerollError(Exception):
    """Base of the errors that reach a user as a message instead of a traceback."""


@dataclass(frozen=True)
class Problem:
    """One fault of a run file.

    Attributes:
        key: dotted key, `section.key`; an item of a list is `section.key[0]`.
        message: what is wrong, with the value where there is one.
        remedy: what to do about it; empty when the message already says it.
        file: the run file, or None for a value given on the command line.
        line: line number in that file, counted from 1, where it is known.
    """

    key: str
    message: str
    remedy: str = ""
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        remedy = f"\n    {self.remedy}" if self.remedy else ""
        return f"{where}{self.key}: {self.message}{remedy}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RunFileError(RerollError, ValueError):
    """Every fault that was found in a run file, at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PluginError(RerollError):
    """A plugin broke its contract: wrong type returned, import failed, name taken twice."""


class TaskError(RerollError, ValueError):
    """A prompt file or a task set holds something that is not a task."""


class WorkerDied(RerollError):
    """A worker process ended while it was needed; carries its name and last words."""


class EngineError(RerollError):
    """An engine refused a request or could not load weights."""
