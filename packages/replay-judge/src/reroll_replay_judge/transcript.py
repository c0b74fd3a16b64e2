"""A conversation as text of a bounded length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reroll import Message
from reroll.replay import is_blank, tool_calls

LEAST_BUDGET = 200
SHARES = 20
"""A message that is shortened keeps at least the budget divided by this."""
GAP = "\n\n"
CUT = " … "
NAMES = {"assistant": "Answer", "tool": "Result", "user": "User"}


def transcript(messages: Sequence[Message], budget: int) -> str:
    """The conversation as text of at most `budget` characters: the question as it is, the rest with who said it.

    What is longer loses the middle of its longest messages; where that does not do, messages between the first and the
    last ones.
    """
    asked = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
    shown = [
        _text(message["content"]) if index == asked else rendered(message) for index, message in enumerate(messages)
    ]
    if len(GAP.join(shown)) <= budget:
        return GAP.join(shown)
    first, last = _kept(shown, budget)
    note = [_left_out(last - first)] if first < last else []
    kept = shown[:first] + shown[last:]
    cap = _largest_cap(kept, budget - sum(len(text) + len(GAP) for text in note))
    cut = [_cut(text, cap) for text in kept]
    return GAP.join([*cut[:first], *note, *cut[first:]])


def rendered(message: Message) -> str:
    """One message with the name of who said it, and a line for each call that it makes."""
    said, calls = _text(message["content"]), tool_calls(message)
    name = NAMES.get(message["role"], "System")
    lines = [] if calls and is_blank(said) else [f"{name}: {said}" if said else f"{name}:"]
    for call in calls:
        function = call["function"]
        lines.append(f"Call: {function['name']}({json.dumps(function['arguments'], ensure_ascii=False, default=str)})")
    return "\n".join(lines)


def _text(content: Any) -> str:
    """A content that is text, or the texts of its parts; what is no text is named by its type."""
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text") or f"[{part.get('type')}]") if isinstance(part, dict) else str(part)
            for part in content
        )
    return str(content)


def _kept(texts: list[str], budget: int) -> tuple[int, int]:
    """Which texts stay, those before one index and those from another: the last and the first ones, in turns, as many
    as fit where each keeps its least."""
    least = budget // SHARES
    if _length(texts, least) <= budget:
        return len(texts), len(texts)
    room = budget - len(_left_out(len(texts)))
    first, last = 0, len(texts)
    while True:
        from_end = len(texts) - last <= first
        room -= min(len(texts[last - 1] if from_end else texts[first]), least) + len(GAP)
        if room < 0:
            return first, last
        first, last = (first, last - 1) if from_end else (first + 1, last)


def _left_out(count: int) -> str:
    return f"[… {count} messages are left out …]"


def _length(texts: list[str], cap: int) -> int:
    return sum(min(len(text), cap) for text in texts) + len(GAP) * (len(texts) - 1)


def _largest_cap(texts: list[str], budget: int) -> int:
    """The most characters that a text may keep so that all fit."""
    low, high = 0, budget
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _length(texts, middle) <= budget else (low, middle - 1)
    return low


def _cut(text: str, cap: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= cap:
        return text
    kept = max(cap - len(CUT), 0)
    return text[: kept - kept // 2] + CUT + text[len(text) - kept // 2 :]
