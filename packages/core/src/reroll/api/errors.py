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


class CheckpointError(RerollError, ValueError):
    """A checkpoint is not whole, or what it saved does not fit the run."""


WORKER_LOST = 3
"""Exit code of a program that ended because one of its workers had: another start may well go on."""


class WorkerDied(RerollError):
    """A worker process ended while it was needed.

    Attributes:
        worker: its name. The message has its last words.
    """

    def __init__(self, worker: str, message: str) -> None:
        super().__init__(worker, message)
        self.worker = worker

    def __str__(self) -> str:
        return f"worker {self.worker!r} {self.args[1]}"


class EngineError(RerollError):
    """An engine cannot serve: it stopped, or could not load a model or weights. Ends the run, unlike its two kinds
    below."""


class EngineUnavailable(EngineError):
    """An engine's server has ended, or does not answer. What was asked of it has no result and can be asked of another
    engine; this one may come back (`Engine.recover`)."""


class RequestRefused(EngineError):
    """An engine does not take this one request; the message names field, value and remedy. Costs one response."""


class TrainingError(RerollError):
    """The trainer cannot go on: a step was not finite, or the model cannot be trained exactly."""


class ScorerClosed(RerollError):
    """A call came to a scorer that is closed, or was still waiting when it was."""
