"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, hookimpl
from reroll.models.config import ModelSection


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    return [ModelSection]
