"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, hookimpl
from reroll.config.run import RunSection


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    return [RunSection]
