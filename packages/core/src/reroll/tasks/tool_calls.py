"""What a model writes to call tools, read back into messages.

How a model writes calls is learned from its chat template (`call_probes`). Markers are looked for with any white space
between their parts, since a call that is written a little differently is still a call; whether the template would write
it in the same way again is for `Renderer.extend` to find out. Every reader is linear in the length of the text.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from reroll.api import AssistantTurn, Message

THOUGHT_END = "</think>"
NAME = re.compile(r"[\w.\-]+")
PARTS = re.compile(r"\s+|(?<=[>\]])")
MOST_NESTING = 50
"""Of arguments: what goes deeper could not be copied and saved everywhere that a message goes."""
IDENTIFIER = re.compile(r"[A-Za-z0-9]{9}")
"""The one form of call identifiers that every template takes."""


def call_id(number: int) -> str:
    """An identifier for the call of that number in a conversation, counted from 0."""
    return f"call{number:05d}"


class Call(NamedTuple):
    """`identifier` is the one that the model wrote, where the format has it write one."""

    name: str
    arguments: Mapping[str, Any]
    identifier: str | None = None


@dataclass(frozen=True, kw_only=True)
class CallFormat(ABC):
    """How calls are written.

    Attributes:
        lead: stands before the first call.
        gap: stands between content and lead.
        bare_gap: stands before the lead where there is no content.
        trailer: stands after the last call.
        joint: stands between two calls; None where a turn can make one call only.
    """

    lead: str
    gap: str
    trailer: str
    joint: str | None
    bare_gap: str = ""

    @property
    def literals(self) -> str:
        """All that the format writes beside calls."""
        return " ".join([self.gap, self.lead, self.joint or "", self.trailer])

    def parse(self, text: str) -> AssistantTurn:
        """The turn that `text` is. Calls end a turn: one that is followed by anything else is malformed, unless it is
        part of a thought, which ends with `</think>`."""
        start, malformed = 0, False
        for _ in range(2):
            opening = self._opening(text, start)
            malformed = opening is not None
            if opening is not None:
                calls = self._calls(text, opening.end())
                if calls:
                    before = text[: opening.start()]
                    content = "" if before == self.bare_gap else before.removesuffix(self.gap)
                    return AssistantTurn(_message(content, calls))
            thought = text.find(THOUGHT_END, opening.end() if opening else start)
            if thought < 0:
                break
            start = thought + len(THOUGHT_END)
        return AssistantTurn({"role": "assistant", "content": text}, malformed)

    @cached_property
    def _marked(self) -> bool:
        """Whether calls are told from other text by what stands before them; they are the whole turn otherwise."""
        return any(symbol.isalpha() for symbol in self.lead)

    def _opening(self, text: str, start: int) -> re.Match[str] | None:
        """Where calls seem to begin, up to the first call itself."""
        pattern = self._opening_pattern
        return pattern.search(text, start) if self._marked else pattern.match(text, start)

    @cached_property
    @abstractmethod
    def _opening_pattern(self) -> re.Pattern[str]: ...

    def _calls(self, text: str, position: int) -> list[Call] | None:
        """The calls from `position` to the end of the text; None where that is anything else."""
        calls: list[Call] = []
        while True:
            found = self._call(text, position)
            if found is None:
                return None
            call, position = found
            calls.append(call)
            if self._end_pattern.match(text, position):
                return calls
            joint = self._joint_pattern.match(text, position) if self._joint_pattern else None
            if joint is None:
                return None
            position = joint.end()

    @cached_property
    def _end_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{loose(self.trailer)}\s*\Z")

    @cached_property
    def _joint_pattern(self) -> re.Pattern[str] | None:
        return None if self.joint is None else re.compile(rf"\s*{loose(self.joint)}\s*")

    @abstractmethod
    def _call(self, text: str, position: int) -> tuple[Call, int] | None:
        """The call that begins there and where it ends; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class JsonCalls(CallFormat):
    """Each call is a JSON object, of which these keys hold name, arguments and, in some formats, the identifier."""

    name_key: str
    arguments_key: str
    id_key: str | None = None

    @cached_property
    def _opening_pattern(self) -> re.Pattern[str]:
        if self._marked:
            return re.compile(rf"{loose(self.lead)}\s*")
        # Other JSON is an answer and no call.
        return re.compile(rf"\s*{loose(self.lead)}\s*(?=\{{\s*{re.escape(json.dumps(self.name_key))}\s*:)")

    def _call(self, text: str, position: int) -> tuple[Call, int] | None:
        try:
            value, end = DECODER.raw_decode(text, position)
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be rendered
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or not _is_shallow(value, MOST_NESTING):
            return None
        name, arguments = value.get(self.name_key), value.get(self.arguments_key)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        identifier = value.get(self.id_key) if self.id_key else None
        known = isinstance(identifier, str) and IDENTIFIER.fullmatch(identifier)
        return Call(name, arguments, identifier if known else None), end


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(CallFormat):
    """Each call is a name and parameters between tags. The lead ends where the first name begins, the joint where the
    next one does. Values are text: what they stand for is the tool's to say.

    Attributes:
        parameter: stands before a parameter's name.
        value: stands between a parameter's name and its value.
        value_end: stands after a value.
        name_end: stands between the call's name and its first parameter, or the end.
    """

    parameter: str
    value: str
    value_end: str
    name_end: str

    @property
    def literals(self) -> str:
        return " ".join([super().literals, self.name_end, self.parameter, self.value, self.value_end])

    @cached_property
    def _opening_pattern(self) -> re.Pattern[str]:
        return re.compile(loose(self.lead))

    @cached_property
    def _name_end_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{loose(self.name_end)}")

    @cached_property
    def _parameter_pattern(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{loose(self.parameter)}\s*({NAME.pattern})\s*{loose(self.value)}")

    def _call(self, text: str, position: int) -> tuple[Call, int] | None:
        name = NAME.match(text, position)
        ended = self._name_end_pattern.match(text, name.end()) if name else None
        if not name or not ended:
            return None
        arguments: dict[str, str] = {}
        position = ended.end()
        after = self.value_end.strip()
        while found := self._parameter_pattern.match(text, position):
            end = text.find(after, found.end())
            if end < 0:
                return None
            written = text[found.end() : end]
            arguments[found[1]] = self._unpadded(written)
            position = end + len(after)
        return Call(name[0], arguments), position

    def _unpadded(self, written: str) -> str:
        """A value without the white space that the format itself puts around it."""
        before = self.value[len(self.value.rstrip()) :]
        after = self.value_end[: len(self.value_end) - len(self.value_end.lstrip())]
        return written.removeprefix(before).removesuffix(after)


def loose(literal: str) -> str:
    """A pattern for the literal with any white space between its parts, and behind brackets: some tokenizers put a
    space behind special tokens."""
    return r"\s*".join(map(re.escape, filter(None, PARTS.split(literal))))


def _message(content: str, calls: list[Call]) -> Message:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": call.identifier or call_id(number),
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for number, call in enumerate(calls)
        ],
    }


def _is_shallow(value: Any, levels: int) -> bool:
    """Whether at most so many lists and objects are within each other."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond any number")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
