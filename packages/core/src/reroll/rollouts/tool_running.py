"""Running the tools that a model calls: whatever goes wrong in one is told to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from reroll.api import PluginError, Tool
from reroll.workers.together import cancelled_from_outside

GRACE = 10.0
"""Seconds that a tool has for ending once it is cancelled."""


class ToolResult(NamedTuple):
    text: str
    failed: bool


async def run_tool(
    tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any], seconds: float, characters: int
) -> ToolResult:
    """What the tool of that name says, cut to so many characters.

    An exception, an unknown name and a time-out become a text that begins with `error:`. Nothing of an asynchronous
    tool runs on when this returns or is cancelled; PluginError for one that does not end, or that gives no text.
    """
    tool = tools.get(name)
    if tool is None:
        there = ", ".join(sorted(tools)) or "none"
        return ToolResult(_cut(f"error: there is no tool {name!r}; the tools are: {there}", characters), True)
    running = asyncio.ensure_future(_guarded(tool, arguments))
    try:
        await asyncio.wait({running}, timeout=seconds)
        if not running.done():
            return ToolResult(f"error: {name} gave no result within {seconds:g} seconds", True)
    finally:
        await _ended(running, name)
    result = running.result()
    return ToolResult(_cut(result.text, characters), result.failed)


async def _ended(running: asyncio.Future[ToolResult], name: str) -> None:
    """Cancels what still runs and waits for it."""
    if running.done():
        return
    running.cancel()
    await asyncio.wait({running}, timeout=GRACE)
    if not running.done():
        raise PluginError(f"tool {name!r} goes on {GRACE:g} seconds after it was cancelled")


async def _guarded(tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    try:
        text = await tool.call(arguments)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled_from_outside():
            raise
        # A ValueError is the usual way to say what is wrong with arguments; others say little without their name.
        said = _said(error)
        plain = isinstance(error, ValueError) and said
        return ToolResult(f"error: {said}" if plain else f"error: {type(error).__name__}: {said}", True)
    if not isinstance(text, str):
        raise PluginError(f"tool {tool.name!r} gave {text!r:.100}; it must give a text")
    return ToolResult(text, False)


def _said(error: BaseException) -> str:
    """The error's text; an error is anybody's code as well."""
    try:
        return str(error)
    except Exception:
        return ""


def _cut(text: str, characters: int) -> str:
    """Text that a tokenizer takes, of bounded length. It is cut first: the loop waits meanwhile."""
    kept = text[:characters].encode("utf-8", "replace").decode()
    if len(text) <= characters:
        return kept
    return f"{kept}\n[the first {characters} of {len(text)} characters]"
