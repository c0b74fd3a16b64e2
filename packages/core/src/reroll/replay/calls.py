"""Tool calls and their results in a conversation: which belong together, and a conversation in which all do.

The results of a turn's calls follow it directly, as chat formats ask: whatever comes before the next message that is no
result is matched with the turn's calls, by id, and in order where the call or the result has none.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reroll.api import Message


class Place(NamedTuple):
    """Where a call is: the index of its message, and its position among the message's readable calls."""

    message: int
    call: int


class Taken(NamedTuple):
    """A call that a result answered: its position, and the id that it waited under; None where it has none."""

    position: int
    identity: str | None


class OpenCalls:
    """The calls of one assistant turn that have no result yet.

    What was answered can be opened again, last answered first, so that a walk over a tree serves every branch.
    """

    def __init__(self, message: Mapping[str, Any]) -> None:
        self._named: dict[str, deque[int]] = {}
        self._unnamed: deque[int] = deque()
        self.count = 0
        for position, call in enumerate(tool_calls(message)):
            self._waiting(_identity(call.get("id"))).append(position)
            self.count += 1

    def answer(self, result: Mapping[str, Any]) -> Taken | None:
        """Closes the call that the message `result` answers; None where it answers none, or one that is answered."""
        identity = _identity(result.get("tool_call_id"))
        if identity not in self._named:
            identity = None if self._unnamed or identity is not None else self._first_named()
        waiting = self._waiting(identity)
        if not waiting:
            return None
        self.count -= 1
        return Taken(waiting.popleft(), identity)

    def reopen(self, taken: Taken) -> None:
        """Undoes the latest `answer` that is not undone yet."""
        self._waiting(taken.identity).appendleft(taken.position)
        self.count += 1

    def _waiting(self, identity: str | None) -> deque[int]:
        return self._unnamed if identity is None else self._named.setdefault(identity, deque())

    def _first_named(self) -> str | None:
        waiting = {places[0]: identity for identity, places in self._named.items() if places}
        return waiting[min(waiting)] if waiting else None


def tool_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of an assistant message in the chat template's form,
    `{"id", "type": "function", "function": {"name", "arguments"}}`, new ones.

    Calls may be nested like this or flat, `{"id", "name", "arguments"}`, and their arguments a mapping or its JSON;
    arguments that are neither stay as they are. What has no name is no call and is left out.
    """
    given = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        return []
    return [call for item in given if (call := _call(item)) is not None]


def _call(item: Any) -> dict[str, Any] | None:
    if not isinstance(item, Mapping):
        return None
    function = item.get("function") or item
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        return None
    identity = _identity(item.get("id"))
    told = {"name": name, "arguments": _arguments(function.get("arguments"))}
    return {**({} if identity is None else {"id": identity}), "type": "function", "function": told}


def _arguments(given: Any) -> Any:
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            return given
        return parsed if isinstance(parsed, dict) else given
    return {} if given is None else given


def _identity(given: Any) -> str | None:
    return None if given is None or given == "" else str(given)


def normalised(message: Mapping[str, Any]) -> Message:
    """A new message with its calls in the chat template's form and without fields that are null; a content that is null
    is an empty text, which every template can render."""
    kept = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
    calls = tool_calls(message)
    return {**kept, "content": kept.get("content", ""), **({"tool_calls": calls} if calls else {})}


def answers(messages: Sequence[Mapping[str, Any]]) -> dict[Place, int]:
    """The calls that are answered, each with the index of its result."""
    found: dict[Place, int] = {}
    turn, waiting = 0, OpenCalls({})
    for index, message in enumerate(messages):
        if message.get("role") != "tool":
            turn, waiting = index, OpenCalls(message)
        elif (taken := waiting.answer(message)) is not None:
            found[Place(turn, taken.position)] = index
    return found


def dangling(messages: Sequence[Mapping[str, Any]]) -> list[Place]:
    """The calls without a result."""
    answered = answers(messages)
    places = (Place(index, call) for index, message in enumerate(messages) for call in range(len(tool_calls(message))))
    return [place for place in places if place not in answered]


def orphans(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Indices of the results that answer no call: none was made, or it has its result already."""
    results = set(answers(messages).values())
    return [index for index, message in enumerate(messages) if message.get("role") == "tool" and index not in results]


def without_dangling(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation, in new messages, with every call answered once and every result an answer. Left out are calls
    without a result, results without a call or given twice, and assistant messages that say nothing then."""
    answered = answers(messages)
    results = set(answered.values())
    kept: list[Message] = []
    for index, message in enumerate(messages):
        new = normalised(message)
        calls = [call for position, call in enumerate(new.pop("tool_calls", [])) if Place(index, position) in answered]
        if calls:
            new["tool_calls"] = calls
        silent = message.get("role") == "assistant" and not calls and is_blank(new["content"])
        if not silent and (message.get("role") != "tool" or index in results):
            kept.append(new)
    return kept


def is_blank(content: Any) -> bool:
    """Whether a message's content, text or a list of parts, shows nothing."""
    if isinstance(content, str):
        return not content.strip()
    if isinstance(content, Sequence):
        return all(isinstance(part, Mapping) and not str(part.get("text", "x") or "").strip() for part in content)
    return not content


def check(messages: Sequence[Any]) -> str | None:
    """Why the messages cannot be a prompt, or None where they can."""
    if not messages:
        return "it has no messages"
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return f"message {index} is no message with a role: {message!r:.80}"
    for place in dangling(messages):
        name = tool_calls(messages[place.message])[place.call]["function"]["name"]
        return f"message {place.message} calls {name!r}, and no result of that follows"
    for index in orphans(messages):
        return f"message {index} is the result of no call, or of one that has its result"
    if messages[-1]["role"] == "assistant":
        return "its last message is the assistant's, and nothing asks for another"
    return None
