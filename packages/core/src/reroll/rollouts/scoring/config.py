"""Options of scoring."""

from __future__ import annotations

from pydantic import Field

from reroll.api import Config


class ScoringConfig(Config):
    """How verifiers are run."""

    workers: int = Field(default=2, ge=1)
    """Processes that run CPU verifiers."""

    deadline_seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Seconds that one call of a verifier may take, from the start of its work: waiting for a free process
    and importing the verifier do not count. A call over it has the state `timeout`."""

    memory_limit_mb: int = Field(default=2048, ge=0)
    """Memory that one process may allocate, in MiB; 0 sets no limit. A call over it has the state
    `service_error`. Without effect on platforms that do not enforce limits, such as macOS."""
