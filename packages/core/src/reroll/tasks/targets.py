"""Faults of targets, and of the verifiers that are to judge by them."""

from __future__ import annotations

import difflib
import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from reroll.api import Problem, Verifier, one_line

REASON_LENGTH = 600
"""Characters that are repeated of why a target can never be judged: a verifier may have put the target into it."""


def unjudgeable(verifier: Verifier, target: Any) -> str | None:
    """Why no answer can ever be judged by the target, in one line; None where nothing says so. A check that raises has
    met what its verifier cannot read."""
    try:
        why = verifier.check_target(target)
    except Exception as error:  # a verifier is anybody's code
        why = f"check_target raised {type(error).__name__}: {error}"
    return one_line(str(why), REASON_LENGTH) if why else None


def target_fault(name: str, target: Any, why: str) -> str:
    """The sentence about a target that `unjudgeable` gave a reason for. It shows the target once, in one line and with
    single backslashes, as LaTeX has them."""
    written = one_line(repr(target))
    shown = written.replace("\\\\", "\\")
    if re.search(rf"(?<![\w.]){re.escape(written)}(?![\w.])", why):
        return f"target of {name!r} can never be judged: {why.replace(written, shown)}"
    return f"target {shown} of {name!r} can never be judged: {why}"


def unready(verifier: Verifier) -> str | None:
    """What an asynchronous verifier lacks before it can be asked, such as a key; None where that is nothing. Plain ones
    get ready in the processes that ask them."""
    if not inspect.iscoroutinefunction(verifier.score):
        return None
    try:
        verifier.warm_up()
    except Exception as error:  # what the user must give is a RerollError, a fault of the verifier any other
        return str(error) or type(error).__name__
    return None


class UnlistedVerifiers:
    """Verifiers that tasks name and that nobody selected: how many tasks, and which is the first.

    Args:
        listed: those that may be named.
        by_task_set: they are the task set's own, and not those of the run file.
    """

    def __init__(self, listed: Collection[str], by_task_set: bool) -> None:
        self._listed = listed
        self._by_task_set = by_task_set
        self._tasks: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    @property
    def found(self) -> bool:
        return bool(self._tasks)

    def note(self, names: Iterable[str], task: str) -> None:
        """Takes in a task with what its targets name; `task` says which it is."""
        for name in names:
            if name not in self._listed:
                self._tasks[name] += 1
                self._first.setdefault(name, task)

    def problems(self, key: str) -> Iterator[Problem]:
        """One for each such name."""
        for name, count in self._tasks.items():
            who = "which the task set does not bring along"
            remedy = "correct the task set"
            if not self._by_task_set:
                who = "which data.verifiers does not list"
                remedy = f"add {name!r} to data.verifiers"
                if close := difflib.get_close_matches(name, self._listed, 1):
                    remedy += f", or correct the targets if {close[0]!r} is meant"
            tasks = "1 task has a target" if count == 1 else f"{count} tasks have targets"
            yield Problem(key, f"{tasks} for the verifier {name!r}, {who}; the first: {self._first[name]}", remedy)
