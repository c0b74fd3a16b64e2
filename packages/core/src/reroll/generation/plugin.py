"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.generation.config import GenerationSection

    return [GenerationSection]
