"""Options of `placement.backend = "ray"`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from reroll.api import Config


class RayPlacementConfig(Config):
    address: str | None = None
    """The cluster, as "host:port", or "auto" for the one that this machine belongs to. By default that one, or where
    there is none a new one on this machine, which ends with the run."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How workers lie on nodes: close together or apart; the strict ones fail where it is not possible."""
    cpus_per_worker: float = Field(1.0, gt=0)
    """CPUs that Ray sets aside for each worker."""
    startup_timeout: float = Field(300.0, gt=0)
    """Seconds until the cluster has answered, until it has room for the workers, and until each one's process is up."""

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, address: str | None) -> str | None:
        if address is not None and "://" in address:
            raise ValueError(
                "a run is no Ray client: it shares files with its workers; start it on a node of the cluster, with "
                '"auto" or "host:port"'
            )
        return address
