"""`[placement]`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from reroll.api import ConfigSection, Hook, Selection


class PlacementSection(ConfigSection):
    section: ClassVar[str] = "placement"
    backend: Annotated[Selection, Hook("placements")] = Selection(name="local")
    """Where trainer and engines run: `local`, child processes on this machine, or `ray`, actors of a Ray
    cluster; options as in { name = "ray", address = "auto" }."""
    colocate: bool = False
    """Engines and trainer take turns on the same devices: engines give their memory up while the trainer works. For
    runs without async.fully_async, with an engine that can do so."""
