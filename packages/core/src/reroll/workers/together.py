"""Running coroutines at once, with the first failure raised as itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised, not wrapped in a group: work that runs
    together fails together, and one cause is what a user can act on. Every coroutine has ended on return."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as error:
        raise first_cause(error) from None
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


def first_cause(error: BaseException) -> BaseException:
    """The first error of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
