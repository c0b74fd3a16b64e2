"""Targets of the verifier: which instructions an answer is judged by.

Three forms are read:

- that of the data sets, `{"instruction_id_list": [id, …], "kwargs": [{name: value or None, …}, …]}`, with an optional
  `prompt` and `key`; a parameter that is None does not apply;
- a list of `{"id": id, name: value, …}`;
- a text that is one of them in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reroll import one_line
from reroll_verifiers_if.parameters import nearest
from reroll_verifiers_if.registry import Instruction, find
from reroll_verifiers_if.texts import has_content, is_blank

_KEYS = ("instruction_id_list", "kwargs", "prompt", "key")
_SHAPE = '{"instruction_id_list": […], "kwargs": […]} or a list of {"id": …, …}'


MAX_INSTRUCTIONS = 100
"""How many instructions a target may name."""

MAX_LISTED = 1_000
"""How many words the lists of a target may have, all together."""

_OF_MARKS = frozenset({"count:punctuation", "format:parentheses", "detectable_format:json_format"})
"""What an answer without a letter, a digit or an emoji may follow."""


class TargetError(ValueError):
    """A target that nothing can be judged by; names id, parameter, value and remedy."""


@dataclass(frozen=True)
class Asked:
    """One instruction of a target.

    Attributes:
        name: its id, with `#2`, `#3`, … where a target repeats one.
        instruction: what is asked.
        values: its parameters as they are judged with.
    """

    name: str
    instruction: Instruction
    values: Mapping[str, Any]

    def follows(self, text: str) -> bool:
        """Whether a text follows; one without a word follows only what asks for nothing but marks."""
        answers = has_content(text) or (self.instruction.id in _OF_MARKS and not is_blank(text))
        return answers and self.instruction.judge(text, **self.values)


def read_target(target: Any, prompt: str | None = None) -> list[Asked]:
    """The instructions of a target.

    Args:
        target: in one of the three forms.
        prompt: stands for the target's own `prompt` where it has none. With None, a parameter that only the prompt
            can give is left out: the target is checked before its task is known.

    Raises:
        TargetError: see there.
    """
    pairs, own_prompt = _pairs(target)
    asked: list[Asked] = []
    seen: dict[str, int] = {}
    for id, given in pairs:
        try:
            instruction = find(id)
        except ValueError as error:
            raise TargetError(str(error)) from None
        seen[id] = seen.get(id, 0) + 1
        name = id if seen[id] == 1 else f"{id}#{seen[id]}"
        asked.append(Asked(name, instruction, _values(instruction, given, own_prompt or prompt)))
    _check_lists(asked)
    _check_together(asked)
    return asked


def _pairs(target: Any) -> tuple[list[tuple[Any, Mapping[str, Any]]], str | None]:
    """Ids with the parameters that are not None, and the target's prompt."""
    if isinstance(target, str):
        try:
            target = json.loads(target)
        except (ValueError, RecursionError):
            raise TargetError(f"the target {_shown(target)} is a text that is no JSON; give {_SHAPE}") from None
    if isinstance(target, Mapping):
        return _data_set_form(target)
    if not isinstance(target, (list, tuple)):
        raise TargetError(f"the target must be {_SHAPE}, not {_shown(target)}")
    pairs = []
    for item in target:
        if not isinstance(item, Mapping) or "id" not in item:
            raise TargetError(f"an instruction must be a mapping with an id, not {_shown(item)}")
        pairs.append((item["id"], _set({name: value for name, value in item.items() if name != "id"})))
    return _not_empty(pairs), None


def _data_set_form(target: Mapping[str, Any]) -> tuple[list[tuple[Any, Mapping[str, Any]]], str | None]:
    for key in target:
        if key not in _KEYS:
            raise TargetError(f"unknown key {key!r}{nearest(key, _KEYS) or f'; the target must be {_SHAPE}'}")
    ids, kwargs, prompt = target.get("instruction_id_list"), target.get("kwargs"), target.get("prompt")
    if not isinstance(ids, (list, tuple)):
        raise TargetError(f"instruction_id_list must be a list of ids, not {_shown(ids)}")
    if not isinstance(kwargs, (list, tuple)) or len(kwargs) != len(ids):
        raise TargetError(f"kwargs must be a list with one mapping for each of {len(ids)} ids, not {_shown(kwargs)}")
    if not all(item is None or isinstance(item, Mapping) for item in kwargs):
        raise TargetError(f"kwargs must hold mappings of parameters only, not {_shown(kwargs)}")
    if prompt is not None and not isinstance(prompt, str):
        raise TargetError(f"prompt must be a text, not {_shown(prompt)}")
    return _not_empty([(id, _set(given or {})) for id, given in zip(ids, kwargs, strict=True)]), prompt


def _not_empty(pairs: list[tuple[Any, Mapping[str, Any]]]) -> list[tuple[Any, Mapping[str, Any]]]:
    if not pairs:
        raise TargetError("the target names no instruction; give at least one")
    if len(pairs) > MAX_INSTRUCTIONS:
        raise TargetError(f"the target names {len(pairs)} instructions; give at most {MAX_INSTRUCTIONS}")
    return pairs


def _set(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _values(instruction: Instruction, given: Mapping[str, Any], prompt: str | None) -> dict[str, Any]:
    known = instruction.parameters
    for name in given:
        if name not in known:
            owned = f"it has {', '.join(known)}" if known else "it has none; leave it out"
            raise TargetError(f"{instruction.id} has no parameter {name!r}{nearest(name, known) or f'; {owned}'}")
    values = {}
    for name, parameter in known.items():
        value = given.get(name)
        if value is None and parameter.default is not None:
            if prompt is None:
                continue
            value = parameter.default(prompt)
        if value is None:
            raise TargetError(f"{instruction.id} needs {name}: {parameter.kind}, such as {parameter.example!r}")
        try:
            values[name] = parameter.read(value)
        except ValueError as error:
            raise TargetError(f"{instruction.id}: {name} = {_shown(value)} must be {error}") from None
    if instruction.contradiction and (fault := instruction.contradiction(values)):
        raise TargetError(f"{instruction.id}: {fault}")
    return values


def _check_lists(asked: list[Asked]) -> None:
    """Raises where the lists of words are too long for an answer to be searched for all of them in time."""
    lists = [(item.name, name, value) for item in asked for name, value in item.values.items()]
    lists = [(id, name, value) for id, name, value in lists if isinstance(value, tuple)]
    listed = sum(len(value) for _, _, value in lists)
    if listed > MAX_LISTED:
        id, name, value = max(lists, key=lambda given: len(given[2]))
        held = f"{name} has {len(value)} words, of {listed} in all lists of the target"
        raise TargetError(f"{id}: {held}; give at most {MAX_LISTED} together")


def _check_together(asked: list[Asked]) -> None:
    """Raises where two instructions exclude each other for every answer; each may stand in the target repeatedly."""

    def given(id: str, parameter: str) -> list[Any]:
        return [item.values[parameter] for item in asked if item.instruction.id == id]

    ids = {item.instruction.id for item in asked}
    cases = [id for id in ("change_case:english_capital", "change_case:english_lowercase") if id in ids]
    if len(cases) == 2:
        raise TargetError(f"{cases[0]} and {cases[1]} exclude each other; keep one")
    languages = list(dict.fromkeys(given("language:response_language", "language")))
    if len(languages) > 1:
        raise TargetError(f"language:response_language asks for {' and '.join(map(repr, languages))}; keep one")
    if cases and languages and languages != ["en"]:
        raise TargetError(f"{cases[0]} asks for English and language:response_language for {languages[0]!r}; keep one")
    wanted = {word.lower() for words in given("keywords:existence", "keywords") for word in words}
    for words in given("keywords:forbidden_words", "forbidden_words"):
        for word in words:
            if word.lower() in wanted:
                raise TargetError(
                    f"keywords:existence and keywords:forbidden_words both have {word!r}; drop it from one"
                )


def _shown(value: Any) -> str:
    return one_line(repr(value), 120)
