"""What every pluggable class has in common: a name, a typed configuration, a contract version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

API_VERSION = 1
"""Version of the contracts in this package; a class may state the one that it was written for."""


class Config(BaseModel):
    """Base of every configuration: unknown keys and numbers that are not finite are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False, strict=True)
    since: ClassVar[str] = "0.1"
    """Release of its package that brought the class, and every field that does not say otherwise with `Since`."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that users of other tools may look for and that are not here on purpose → why."""

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, values: Any) -> Any:
        """TOML knows neither paths nor tuples: text and lists stand for them. Nothing else is converted, so that
        `lr = true` is a fault and not 1.0."""
        if not isinstance(values, dict):
            return values
        known = {name: _kinds(field.annotation) for name, field in cls.model_fields.items()}
        converted = dict(values)
        for name, value in values.items():
            kinds = known.get(name, ())
            if isinstance(value, str) and Path in kinds and not _is_literal(value, kinds):
                converted[name] = Path(value)
            elif isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds):
                converted[name] = tuple(value)
        return converted


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The annotation, and the members of a union."""
    return (annotation, *get_args(annotation))


def _is_literal(value: str, kinds: tuple[Any, ...]) -> bool:
    """Whether the text is one that the annotation spells out, beside paths."""
    return any(value in get_args(kind) for kind in kinds if get_origin(kind) is Literal)


class NoConfig(Config):
    """For a component without options."""


class Component:
    """A class that a run file selects by `name` and configures through `Config`."""

    name: ClassVar[str]
    """What a run file writes to select the class; unique within one hook."""
    contract_version: ClassVar[int] = API_VERSION
    metrics_logged: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Metrics of its own that reach the trackers, for the page of metrics: `room/name` → unit and meaning."""
    Config: ClassVar[type[BaseModel]] = NoConfig

    def __init__(self, config: Any = None) -> None:
        self.config: Any = self.Config() if config is None else config
