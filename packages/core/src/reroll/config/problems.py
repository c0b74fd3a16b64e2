"""pydantic's errors → problems that name key, value and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from reroll.api import Config, Problem
from reroll.config.secrets import is_secret

Answer = Callable[[str], tuple[str, str] | None]
"""Message and remedy for a key that a section does not know; None where there is nothing better than the nearest."""


def from_validation(
    error: ValidationError, prefix: str, model: type[BaseModel], answer: Answer = lambda key: None
) -> list[Problem]:
    """One problem a key, with an answer or the nearest one for a key that is not known."""
    problems: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        problem = _problem(dict(item), prefix, model, answer)
        problems.setdefault(problem.key, problem)  # every member of a union has a complaint of its own
    return list(problems.values())


def _problem(item: dict[str, Any], prefix: str, model: type[BaseModel], answer: Answer) -> Problem:
    key = prefix
    for depth, part in enumerate(item["loc"]):
        if isinstance(part, str) and depth and _model_at(model, item["loc"][:depth]) is None:
            break  # not a key, but the name of a union's member
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    given = "" if isinstance(item["input"], dict) else f"{shown(key, item['input'])}: "
    if item["type"] == "extra_forbidden":
        owner = _model_at(model, item["loc"][:-1])
        names = sorted(owner.model_fields) if owner else []
        refused = owner.refused if owner is not None and issubclass(owner, Config) else {}
        if reason := refused.get(str(item["loc"][-1])):
            return Problem(key, f"is refused: {reason}")
        if len(item["loc"]) == 1 and (told := answer(str(item["loc"][0]))):
            return Problem(key, *told)
        return Problem(key, "is not a key that this table knows", nearest(str(item["loc"][-1]), names))
    if item["type"] == "missing":
        return Problem(key, "is required and not given")
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return Problem(key, f"{given}{message[:1].lower()}{message[1:]}")


def shown(key: str, value: Any) -> str:
    """The value for an error message; a secret is never repeated, a long one is cut."""
    if is_secret(key, value):
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def nearest(name: str, names: Iterable[str]) -> str:
    """A remedy for a misspelt name."""
    names = list(names)
    if not names:
        return "it has no options"
    close = difflib.get_close_matches(name, names, 1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(names)}"


def _model_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model that holds the fields at `location` inside `model`."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return None
        current = _inner_model(field.annotation)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None
