"""How a section selects a component: a name alone, or a table with the name and the options."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import model_validator

from reroll.api.component import Config


class Hook(NamedTuple):
    """Annotation of a field: which hook its selection is looked up in."""

    name: str


class Since(NamedTuple):
    """Annotation of a field: the release of its package that brought it, where its class is older."""

    release: str


class Selection(Config):
    """`engine = "local"`, or `engine = { name = "local", threads = 2 }`."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "options": {}}
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            if set(value) == {"name", "options"} and isinstance(value["options"], dict):
                return value
            return {"name": value["name"], "options": {k: v for k, v in value.items() if k != "name"}}
        raise ValueError('give a name, or a table with a name: { name = "…", option = value }')
