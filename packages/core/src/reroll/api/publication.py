"""Publication carries the trainer's weights to the engines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from reroll.api.component import Component
from reroll.api.engines import CommitCost, Engine, TensorSpec, WeightBucket, WeightGroup


class WeightSource(Protocol):
    """The trainer, as a transport sees it. Process groups are independent of each other: one that fails, or waits,
    holds up neither another one nor the trainer.

    Attributes:
        weight_device: where its weights are.
    """

    weight_device: Literal["cpu", "cuda"]

    async def export_weights(self, directory: Path, bucket_bytes: int) -> list[WeightBucket]:
        """Writes the current weights below `directory`, in files of about `bucket_bytes`."""

    async def weight_layout(self, bucket_bytes: int) -> list[list[TensorSpec]]:
        """The tensors in buckets of about `bucket_bytes`, as `send_bucket` takes them."""

    async def host_group(
        self, name: str, world_size: int, backend: Literal["gloo", "nccl"], timeout: float
    ) -> WeightGroup:
        """Listens for the ranks of a new process group, of which the trainer is rank 0; `timeout` as there."""

    async def join_group(self, name: str) -> None:
        """Joins a group that it hosts; returns when every rank has."""

    async def send_bucket(self, group: str, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        """Broadcasts the current weights of a bucket into the group; see `WeightStream.flattened`. The bucket is kept:
        the next group that it is sent into costs no work of the other ranks."""

    async def drop_bucket(self) -> None:
        """Frees the bucket that was kept."""

    async def leave_group(self, name: str) -> None:
        """Ends the trainer's part, also of a group that failed or that it does not have. Where a broadcast still waits
        for the engine, this waits until the engine leaves too, at most for the group's time-out."""


class Admission(Protocol):
    """The gate before the engines: a closed gate lets no new group in."""

    def close(self) -> None: ...

    def open(self) -> None: ...

    async def drained(self) -> None:
        """Waits until nothing that was admitted is in flight."""


class Router(Protocol):
    """Decides which engine serves a group."""

    def exclude(self, engine: Engine, evict: bool = False) -> None:
        """No new group goes to `engine`; with every engine excluded, new groups wait. Groups that it serves stay,
        unless `evict` sends their next requests elsewhere."""

    def include(self, engine: Engine) -> None: ...

    async def drained(self, engine: Engine) -> None:
        """Waits until no group is on `engine`."""

    def pin(self, group: str, engine: Engine) -> None:
        """All further requests of the group, named by its observation id, go to `engine`."""

    def in_flight(self, engine: Engine) -> int:
        """Requests that the engine has now."""


class Transport(Component):
    """Carries tensors from the trainer to engines. One publication is
    `begin`, then for each engine `stage` and `commit`, then `finish`."""

    @classmethod
    def problems(cls, config: Any, engine: type[Engine], device: str) -> list[str]:
        """Why this configuration could not bring weights to engines of that class, from a trainer whose
        `trainer.device` is `device`."""
        return []

    @abstractmethod
    async def begin(self, source: WeightSource, version: int) -> int:
        """Offers the source's weights as `version`; gives their size in bytes."""

    @abstractmethod
    async def stage(self, engine: Engine) -> None:
        """Brings all tensors to the engine without serving them."""

    async def commit(self, engine: Engine, version: int, recompute: bool = False) -> CommitCost:
        """Lets the engine serve what was staged; `recompute` as for `Engine.commit_weights`."""
        return await engine.commit_weights(version, recompute)

    @abstractmethod
    async def finish(self) -> None:
        """Frees what `begin` took; called after success and after failure."""

    async def close(self) -> None:
        """Frees what lasts from one publication to the next; called at the end of the run."""


@dataclass
class PublicationContext:
    """What a mode works with. `timeout` is in seconds from the start of the publication."""

    version: int
    engines: Sequence[Engine]
    router: Router
    admission: Admission
    transport: Transport
    source: WeightSource
    timeout: float


@dataclass
class PublicationReport:
    """What one publication cost, in seconds and bytes.

    Attributes:
        seconds: of the whole publication.
        pause_seconds: time that engines stood still, summed over engines; recomputation apart.
        recompute_seconds: time spent computing caches again, summed over engines.
        in_flight: requests that were running when the publication began.
        num_bytes: of the tensors, once.
        attempts: 2 if the first one failed; the other costs but `seconds` are the last one's.

    A mode gives `num_bytes` and what it made engines wait; the publisher fills in the rest.
    """

    version: int
    mode: str
    seconds: float = 0.0
    pause_seconds: float = 0.0
    recompute_seconds: float = 0.0
    in_flight: int = 0
    num_bytes: int = 0
    engines: list[str] = field(default_factory=list)
    attempts: int = 1


class PublicationMode(Component):
    """Decides when each engine stops, loads and goes on."""

    homogeneous_groups: ClassVar[bool] = True
    """Whether every group's tokens come from one weight version. Where one does not all the same, it is generated
    again."""

    @abstractmethod
    async def publish(self, context: PublicationContext) -> PublicationReport:
        """Brings every engine to `context.version`, or raises and leaves each on the old version
        or the new one."""
