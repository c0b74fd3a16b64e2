"""The turns of the conversations that wait for an environment, by the names of their trials.

Harbor makes the agent of a trial itself, from an import path and plain options, so that no object can be handed over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

Turns = Callable[["BaseEnvironment"], Awaitable[None]]

_waiting: dict[str, Turns] = {}


@contextmanager
def waiting(trial: str, turns: Turns) -> Iterator[None]:
    """While the trial runs, its agent finds the turns."""
    _waiting[trial] = turns
    try:
        yield
    finally:
        del _waiting[trial]


def turns_of(trial: str) -> Turns:
    return _waiting[trial]


class ConversationFailed(Exception):
    """Ends a trial whose conversation failed; the cause is raised by the harness."""
