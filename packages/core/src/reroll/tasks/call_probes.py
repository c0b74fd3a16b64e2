"""How a chat template writes tool calls, found by having it render conversations whose parts are known.

The probes are rendered as a conversation goes on, with the results of the calls behind them, since templates may treat
the last message in another way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from reroll.api import Message, TaskError
from reroll.tasks.tool_calls import THOUGHT_END, CallFormat, JsonCalls, TaggedCalls, call_id

Render = Callable[[list[Message], list[dict[str, Any]], bool], str]
"""Messages, tools, whether the model is to go on → text; TaskError where the template refuses them."""

QUESTION, CONTENT, RESULT = "probe-question", "probe-content", "probe-result"
NAMES = "probe_tool_one", "probe_tool_two"
ARGUMENTS = {"probe_key_one": "probe value one", "probe_key_two": "probe value two"}
LAST_VALUE = ARGUMENTS["probe_key_two"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "None.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "None."} for key in ARGUMENTS},
                "required": list(ARGUMENTS),
            },
        },
    }
    for name in NAMES
]


def learn_calls(render: Render, special_tokens: Sequence[str]) -> CallFormat:
    """The format in which the template writes calls; TaskError says why it has none.

    Args:
        special_tokens: the tokenizer's own, one of which ends a turn.
    """
    probe = _Probe(render, special_tokens)
    one = probe.turn(1)
    try:
        both = probe.turn(2)
    except TaskError:
        both = None  # one call a turn
    behind = probe.behind_content()
    found = _json_calls(one, both, behind) or _tagged_calls(one, both, behind)
    if found is None:
        raise TaskError(f"the chat template writes tool calls in a form that cannot be read back: {one!r:.300}")
    calls = [call["function"] for call in found.parse(one).message.get("tool_calls", ())]
    if calls != [{"name": NAMES[0], "arguments": ARGUMENTS}]:
        raise TaskError(f"the chat template writes a tool call that reads back as {calls}: {one!r:.300}")
    return found


class _Probe:
    """What the template makes of turns with calls."""

    def __init__(self, render: Render, special_tokens: Sequence[str]) -> None:
        self._render = render
        self._special_tokens = special_tokens
        question = {"role": "user", "content": QUESTION}
        answer = {"role": "assistant", "content": CONTENT}
        begin = render([question], TOOLS, True)
        plain = render([question, answer, question], TOOLS, True)
        self._heads = [begin, plain[: plain.rfind(CONTENT)]]
        closed = render([question, answer], TOOLS, False)
        self._ending = closed[closed.rfind(CONTENT) + len(CONTENT) :]
        """What ends a turn."""

    def behind_content(self) -> str:
        """What stands behind content in a turn that makes calls; empty where the template leaves content out."""
        try:
            text = self._with_results(1, CONTENT)
        except TaskError:
            return ""
        return text.partition(CONTENT)[2]

    def turn(self, count: int) -> str:
        """A turn of so many calls and no content, without what begins and ends turns."""
        text = self._with_results(count, "")
        text = text[: text.find(RESULT)]
        turn = text[len(self._head(text)) :]
        if NAMES[count - 1] not in turn or LAST_VALUE not in turn:
            raise TaskError("the chat template does not write tool calls: the model cannot call tools")
        spoken = turn.rfind(LAST_VALUE) + len(LAST_VALUE)
        return turn[:spoken] + self._tail(count, turn[spoken:])

    def _head(self, text: str) -> str:
        """What stands before the turn: what a turn is prompted with, or what stands before one that makes no calls.
        Where the template writes something else there, what both have in common up to a bracket or white space."""
        for head in self._heads:
            if text.startswith(head):
                return head
        common = _common_start(text, self._heads[-1])
        return common[: max(common.rfind(end) + 1 for end in "]>\n ")]

    def _tail(self, count: int, rest: str) -> str:
        """The turn's own part of `rest`, which stands between its last argument and the first result."""
        try:
            closed = self._render(_conversation(count, ""), TOOLS, False)
        except TaskError:
            closed = ""  # no turn may stay unanswered
        behind = closed[closed.rfind(LAST_VALUE) + len(LAST_VALUE) :]
        if closed and behind.endswith(self._ending) and rest.startswith(behind.removesuffix(self._ending)):
            return behind.removesuffix(self._ending)
        ends = [rest.find(token) for token in self._special_tokens if token in rest]
        return rest[: min(ends, default=len(rest))]

    def _with_results(self, count: int, content: str) -> str:
        results = [
            {"role": "tool", "name": NAMES[number], "content": RESULT, "tool_call_id": call_id(number)}
            for number in range(count)
        ]
        text = self._render([*_conversation(count, content), *results], TOOLS, True)
        if RESULT not in text:
            raise TaskError("the chat template does not write the results of tools: the model cannot call tools")
        return text


def _conversation(count: int, content: str) -> list[Message]:
    calls = [
        {"id": call_id(number), "type": "function", "function": {"name": NAMES[number], "arguments": ARGUMENTS}}
        for number in range(count)
    ]
    return [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": content, "tool_calls": calls},
    ]


def _json_calls(one: str, both: str | None, behind: str) -> JsonCalls | None:
    found = _object(one, NAMES[0])
    if found is None:
        return None
    begin, end, value = found
    name_key, arguments_key, id_key = (
        next((key for key, held in value.items() if held == part), None) for part in (NAMES[0], ARGUMENTS, call_id(0))
    )
    if name_key is None or arguments_key is None:
        return None
    joint = None
    first, second = (_object(both or "", name) for name in NAMES)
    if both and first and second and both[: first[0]] == one[:begin] and both[second[1] :] == one[end:]:
        joint = both[first[1] : second[0]]
    lead, bare_gap = _lead(one[:begin])
    return JsonCalls(
        lead=lead,
        gap=_gap(lead, behind),
        bare_gap=bare_gap,
        trailer=one[end:],
        joint=joint,
        name_key=name_key,
        arguments_key=arguments_key,
        id_key=id_key,
    )


def _object(text: str, name: str) -> tuple[int, int, dict[str, Any]] | None:
    """The innermost JSON object that holds `name`: where it begins and ends, and what it is."""
    begin = text.find(name)
    while (begin := text.rfind("{", 0, max(begin, 0))) >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin)
        except ValueError:
            continue
        if name in value.values():
            return begin, end, value
    return None


def _tagged_calls(one: str, both: str | None, behind: str) -> TaggedCalls | None:
    pieces = _between(one, [NAMES[0], *_words()])
    if pieces is None:
        return None
    before, to_parameter, value, between, other_value, rest = pieces
    parameter = _common_end(to_parameter, between)
    value_end = between.removesuffix(parameter)
    if value != other_value or not rest.startswith(value_end) or "<" not in before or "<" not in value_end:
        return None
    lead, bare_gap = _lead(before)
    joint = None
    pair = _between(both or "", [NAMES[0], *_words(), NAMES[1], *_words()])
    if pair and pair[5].startswith(value_end):
        joint = pair[5].removeprefix(value_end)
    return TaggedCalls(
        lead=lead,
        gap=_gap(lead, behind),
        bare_gap=bare_gap,
        trailer=rest.removeprefix(value_end),
        joint=joint,
        parameter=parameter,
        value=value,
        value_end=value_end,
        name_end=to_parameter.removesuffix(parameter),
    )


def _words() -> list[str]:
    return [word for item in ARGUMENTS.items() for word in item]


def _between(text: str, words: Sequence[str]) -> list[str] | None:
    """What stands before, between and behind the words; None unless they come in that order."""
    pieces = []
    for word in words:
        piece, found, text = text.partition(word)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]


def _common_start(left: str, right: str) -> str:
    pairs = zip(left, right, strict=False)
    return left[: len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))]


def _common_end(left: str, right: str) -> str:
    return _common_start(left[::-1], right[::-1])[::-1]


def _lead(before: str) -> tuple[str, str]:
    """What announces the first call, of all that stands before it in a turn without content, and the white space before
    that. An empty thought, which some templates put there, is what the model says and no part of either."""
    _, thought, behind = before.rpartition(THOUGHT_END)
    lead = behind.lstrip()
    return lead, "" if thought else behind[: len(behind) - len(lead)]


def _gap(lead: str, behind: str) -> str:
    """What stands between content and lead."""
    return behind[: max(behind.find(lead), 0)]
