"""`[serving]`: which engine, how many, and how weights reach them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from reroll.api import ConfigSection, Hook, Selection


class ServingSection(ConfigSection):
    section: ClassVar[str] = "serving"
    refused: ClassVar[Mapping[str, str]] = {
        "update_weights_interval": "weights are published after every collection, which the staleness bound counts on; "
        "for fewer publications make collections larger (rollout.rollout_batch_size)",
    }

    engine: Annotated[Selection, Hook("engines")] = Selection(name="local")
    """What generates: `local` is the embedded engine; options as in { name = "local", max_running_requests = 64 }."""
    num_engines: int = Field(1, gt=0)
    """Engines, each in a process of its own with the whole model; a group stays on one of them."""
    publication_mode: Annotated[Selection, Hook("publication_modes")] = Selection(name="barrier")
    """When engines take new weights: `barrier` (nothing is in flight), `engine_drain` (one engine after another) or
    `refresh` (in the middle of responses)."""
    transport: Annotated[Selection, Hook("transports")] = Selection(name="disk")
    """How tensors reach engines: `disk` (any file system that both share), `shared_memory`, or `distributed` (broadcast
    in process groups; nothing is shared)."""
    publication_timeout: float = Field(300.0, gt=0)
    """Seconds that one publication may take."""
