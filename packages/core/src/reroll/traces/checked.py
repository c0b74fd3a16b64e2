"""JSON that was written before, checked when it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError

from reroll.api import one_line

ModelT = TypeVar("ModelT", bound=BaseModel)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("input should be text")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("input should be a table")
    return value


Text = Annotated[str, PlainValidator(_text)]
"""Any text that JSON can hold: pydantic's own check refuses lone surrogates."""
Table = Annotated[dict[str, Any], PlainValidator(_table)]


class Checked(BaseModel):
    """Nothing is converted; fields that a later version adds are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def checked(model: type[ModelT], value: Any, prefix: str = "") -> ModelT:
    """The value as its model; ValueError names the first field that is not what it must be."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = prefix
        for part in first["loc"]:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] == "missing" else f"{one_line(repr(first['input']), 60)}: "
        raise ValueError(f"{where or 'it'}: {given}{message[:1].lower()}{message[1:]}") from None


def read_checked(model: type[ModelT], path: Path, schema: int) -> ModelT:
    """The content of a JSON file that says its schema, as its model. ValueError names the file and says why it is
    none; FileNotFoundError is left to the caller, who knows what its absence means."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    said = found.get("schema") if isinstance(found, dict) else type(found).__name__
    if said != schema:
        raise ValueError(f"{path.name}: schema {said!r}; this version reads {schema}")
    try:
        return checked(model, found)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
