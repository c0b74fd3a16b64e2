"""What every pluggable class has in common: a name, a typed configuration, a contract version."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

API_VERSION = 1
"""Version of the contracts in this package; a class may state the one that it was written for."""


class Config(BaseModel):
    """Base of every configuration: unknown keys and numbers that are not finite are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)


class NoConfig(Config):
    """For a component without options."""


class Component:
    """A class that a run file selects by `name` and configures through `Config`."""

    name: ClassVar[str]
    """What a run file writes to select the class; unique within one hook."""
    contract_version: ClassVar[int] = API_VERSION
    Config: ClassVar[type[BaseModel]] = NoConfig

    def __init__(self, config: Any = None) -> None:
        self.config: Any = self.Config() if config is None else config
