"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, Engine, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.serving.config import ServingSection
    from reroll.serving.sglang.section import SGLangSection

    return [ServingSection, SGLangSection]


@hookimpl
def reroll_engines() -> list[type[Engine]]:
    from reroll.serving.local.engine import LocalEngine
    from reroll.serving.sglang.engine import SGLangEngine

    return [LocalEngine, SGLangEngine]
