"""What an instruction's parameters may be.

A parameter reads the value of a target: it gives back the value to judge with, or raises ValueError with what it
expected. Data sets that went through a table hold whole numbers as `5.0`, and these are read as 5.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reroll_verifiers_if.texts import is_blank

RELATIONS = ("at least", "less than")
"""How a count is compared with its bound, in IFEval's words."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an instruction.

    Attributes:
        kind: what it is, for a person.
        example: a value that is right.
        read: value of the target → value to judge with; raises ValueError saying what was expected.
        default: prompt → the value where the target gives none, None if the prompt gives none either. A parameter
            without a default is required.
    """

    kind: str
    example: Any
    read: Callable[[Any], Any]
    default: Callable[[str], Any] | None = None


def whole(example: int, least: int = 0, most: int | None = None) -> Parameter:
    """A whole number between `least` and `most`, both allowed."""
    limits = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(value: Any) -> int:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or value != value or value in (float("inf"), float("-inf")) or value != int(value):
            raise ValueError(f"a whole number {limits}")
        if value < least or (most is not None and value > most):
            raise ValueError(f"a whole number {limits}")
        return int(value)

    return Parameter(f"whole number {limits}", example, read)


def percentage(example: int) -> Parameter:
    """A number from 0 to 100."""

    def read(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 100:
            raise ValueError("a number from 0 to 100")
        return float(value)

    return Parameter("number from 0 to 100", example, read)


def any_text(example: str, default: Callable[[str], Any] | None = None) -> Parameter:
    """A text that is not blank."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or is_blank(value):
            raise ValueError("a text that is not blank")
        return value

    return Parameter("text", example, read, default)


def word(example: str) -> Parameter:
    """A text that is not blank, without the space around it."""
    given = any_text(example)
    return Parameter("text", example, lambda value: given.read(value).strip())


def texts(example: list[str]) -> Parameter:
    """A list of texts, at least one, none blank."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError("a list of texts, at least one")
        if not all(isinstance(item, str) and not is_blank(item) for item in value):
            raise ValueError("a list of texts, none of them blank")
        return tuple(value)

    return Parameter("list of texts", example, read)


def character(example: str) -> Parameter:
    """One character."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value.strip()) != 1:
            raise ValueError("one character")
        return value.strip()

    return Parameter("one character", example, read)


def choice(example: str, options: Iterable[str], default: Callable[[str], Any] | None = None) -> Parameter:
    """One of a few words."""
    allowed = tuple(options)

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"one of {', '.join(map(repr, allowed))}{nearest(value, allowed)}")
        return value

    return Parameter(" or ".join(f'"{option}"' for option in allowed), example, read, default)


def relation(example: str = "at least") -> Parameter:
    """`at least` or `less than`."""
    return choice(example, RELATIONS)


def language(example: str, names: Mapping[str, str]) -> Parameter:
    """The code of a language that can be told apart."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"a language code such as 'en'{nearest(value, names)}")
        return value

    return Parameter("ISO 639-1 code", example, read)


def nearest(value: Any, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where one of `known` is near, else nothing."""
    near = difflib.get_close_matches(str(value)[:100], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def compare(count: int, wanted: str, bound: int) -> bool:
    """Whether `count` is `at least` or `less than` `bound`."""
    return count < bound if wanted == "less than" else count >= bound


def below_zero(relation_name: str, bound_name: str) -> Callable[[Mapping[str, Any]], str | None]:
    """The contradiction of asking for less than nothing."""

    def contradiction(values: Mapping[str, Any]) -> str | None:
        if values[relation_name] == "less than" and values[bound_name] < 1:
            return f"{relation_name} = 'less than' with {bound_name} = 0 can never be met; give 1 or more"
        return None

    return contradiction


def ordered(low: str, high: str) -> Callable[[Mapping[str, Any]], str | None]:
    """The contradiction of a range whose end is before its start."""

    def contradiction(values: Mapping[str, Any]) -> str | None:
        if values[low] > values[high]:
            return f"{low} = {values[low]} is above {high} = {values[high]}; swap them"
        return None

    return contradiction
