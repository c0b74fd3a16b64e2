"""Placements decide where worker processes live."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from reroll.api.component import Component
from reroll.api.errors import WorkerDied


@dataclass(frozen=True)
class WorkerSpec:
    """A worker to start.

    Attributes:
        name: unique in the run; names the log file and the errors.
        target: `module:Class` whose methods are called; imported in the worker, not here.
        arguments: keyword arguments of the class; must survive pickling.
        environment: variables set before the worker imports anything.
        log: file that receives the worker's output; None leaves it on the caller's stderr.
        gpus: devices that it needs. A placement that hands devices out lets it see those alone.
        role: what it is for, so that a placement can keep workers apart or together.
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    gpus: int = 0
    role: Literal["trainer", "engine", "other"] = "other"


class Worker(Protocol):
    """A started worker; the same for a local process and for a remote actor."""

    name: str

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Awaitable[Any]:
        """Calls a method of the worker's object and gives its result; what the method raised is
        raised here. WorkerDied if the worker ends first."""

    async def close(self, timeout: float = 10.0) -> None:
        """Asks the worker to end, then kills it after `timeout` seconds."""

    def kill(self) -> None:
        """Ends the worker at once."""


class Placement(Component):
    """Starts workers.

    Attributes:
        on_death: called once for each worker that ends without having been asked to.
    """

    on_death: Callable[[WorkerDied], None] | None = None

    def died(self, error: WorkerDied) -> None:
        """A worker has ended without having been asked to."""
        if self.on_death is not None:
            self.on_death(error)

    async def devices(self) -> int | None:
        """GPUs that it has to hand out; None where it hands none out, and workers see what their environment says."""
        return None

    async def prepare(self, specs: Sequence[WorkerSpec], share_devices: bool = False) -> None:
        """Told once, before the first start, of the workers that will be started, trainer ranks in their order; makes
        room for them where that has to be done for all together.

        Args:
            share_devices: engines and trainer take turns, and get the same devices.
        """
        return None

    @abstractmethod
    async def start(self, spec: WorkerSpec) -> Worker: ...

    @abstractmethod
    async def close(self) -> None:
        """Ends every worker that is still alive."""
