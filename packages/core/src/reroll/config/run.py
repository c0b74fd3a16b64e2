"""`[run]`: identity and the seed that the others follow."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from reroll.api import ConfigSection


class RunSection(ConfigSection):
    section: ClassVar[str] = "run"

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Names the output folder and the run in every report."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the model side; `data.seed` and `rollout.seed` follow it where they are not given."""
