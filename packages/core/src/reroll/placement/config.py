"""`[placement]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from reroll.api import ConfigSection, Hook, RunFile, Selection


class PlacementSection(ConfigSection):
    section: ClassVar[str] = "placement"

    backend: Annotated[Selection, Hook("placements")] = Selection(name="local")
    """Where trainer and engines run: `local`, child processes on this machine."""

    def resolved(self, run: RunFile) -> Mapping[str, Any]:
        return {"trainer_ranks": 1}
