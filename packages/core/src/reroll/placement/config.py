"""`[placement]`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from reroll.api import ConfigSection, Hook, Selection


class PlacementSection(ConfigSection):
    section: ClassVar[str] = "placement"

    backend: Annotated[Selection, Hook("placements")] = Selection(name="local")
    """Where trainer and engines run: `local`, child processes on this machine."""
