"""Running coroutines at once, with the first failure raised as itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar, cast

from reroll.api import RerollError

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised, not wrapped in a group: work that runs
    together fails together, and one cause is what a user can act on. Every coroutine has ended on return."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as error:
        cause = first_cause(error)
        raise cause from cause.__cause__
    if any(task.cancelled() for task in tasks):
        # Nobody cancelled us: something inside raised it by itself, and would be taken for the end of the run.
        raise RerollError("a task was cancelled from within; what it did is in the log")
    return [task.result() for task in tasks]


async def uninterrupted(coroutine: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Runs to its end even if the caller is cancelled meanwhile, and then lets the cancellation through: for what
    takes workers down."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # raised below
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


LAST_WORDS = 1.0
"""Seconds that tasks which nobody waits for have for ending, once the work is done."""


async def leaving_nothing(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a program's whole work; for `asyncio.run`, which would wait for ever for a task that goes on when it is
    cancelled. Such a one is a plugin's; its coroutine is closed."""
    try:
        return await coroutine
    finally:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        pending = (await asyncio.wait(rest, timeout=LAST_WORDS))[1] if rest else set()
        for task in pending:
            with contextlib.suppress(RuntimeError):  # it goes on even then
                cast(Coroutine[Any, Any, Any], task.get_coro()).close()


def first_cause(error: BaseException, *fatal: type[BaseException]) -> BaseException:
    """The error of nested groups that counts: the first of a fatal type, or the first. The others are noted with it."""
    found = _leaves(error)
    cause = next((leaf for leaf in found if isinstance(leaf, fatal)), found[0])
    for other in found:
        if other is not cause:
            cause.add_note(f"beside it: {type(other).__name__}: {other}")
    return cause


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def cancelled_from_outside() -> bool:
    """Whether somebody wants the current task to end. If not, a CancelledError in it is a fault of what it ran."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
