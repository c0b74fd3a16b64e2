"""What the room registers."""

from __future__ import annotations

from reroll.api import ConfigSection, Placement, hookimpl


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll.caches.config import CompilerCacheSection
    from reroll.placement.config import PlacementSection

    return [CompilerCacheSection, PlacementSection]


@hookimpl
def reroll_placements() -> list[type[Placement]]:
    from reroll.placement.local import LocalPlacement
    from reroll.placement.ray.placement import RayPlacement

    return [LocalPlacement, RayPlacement]
