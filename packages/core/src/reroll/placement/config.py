"""`[placement]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from reroll.api import ConfigSection, Hook, Selection


class PlacementSection(ConfigSection):
    section: ClassVar[str] = "placement"
    refused: ClassVar[Mapping[str, str]] = {
        "colocate": "engines never share the trainer's devices: they could not generate while it trains, which "
        "async.fully_async needs, and taking turns on one device is not built",
    }

    backend: Annotated[Selection, Hook("placements")] = Selection(name="local")
    """Where trainer and engines run: `local`, child processes on this machine, or `ray`, actors of a Ray
    cluster; options as in { name = "ray", address = "auto" }."""
