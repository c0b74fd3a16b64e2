"""Workers as actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from reroll.api import Placement, RerollError, Worker, WorkerSpec
from reroll.placement.ray.bundles import Place, assign, make_bundles
from reroll.placement.ray.config import RayPlacementConfig

if TYPE_CHECKING:
    from reroll.placement.ray.cluster import Cluster
    from reroll.placement.ray.worker import RayWorker


@dataclass(frozen=True)
class Room:
    """What was made free for one worker. `shared`: its devices are counted as those of the ranks in its bundle."""

    group: Any
    place: Place
    shared: bool


class RayPlacement(Placement):
    """Every worker is an actor in a placement group, and ends with the program that started it."""

    name = "ray"
    Config = RayPlacementConfig

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._cluster: Cluster | None = None
        self._rooms: dict[str, Room] = {}
        self._workers: list[RayWorker] = []

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            if find_spec("ray") is None:
                raise RerollError("placement.backend = \"ray\" needs ray: pip install 'reroll[ray]'")
            # Imported here, as below: `plan` looks at this class, and must wait neither for Ray nor for asyncio.
            from reroll.placement.ray.cluster import Cluster

            self._cluster = Cluster(self.config)
        await self._cluster.connect()
        return self._cluster

    async def devices(self) -> int:
        return (await self._connected()).gpus()

    async def prepare(self, specs: Sequence[WorkerSpec], share_devices: bool = False) -> None:
        """Reserves room for all of them in one placement group.

        Raises:
            RerollError: no cluster, or no room in it within `startup_timeout`.
        """
        if not specs:
            return
        cluster = await self._connected()
        bundles = make_bundles(specs, self.config.cpus_per_worker, share_devices)
        group, places = await cluster.reserve(bundles)
        for number, place in assign(bundles, places).items():
            shared = share_devices and specs[number].role == "engine"
            self._rooms[specs[number].name] = Room(group, place, shared)

    async def start(self, spec: WorkerSpec) -> Worker:
        from reroll.placement.ray.cluster import at
        from reroll.placement.ray.worker import RayWorker
        from reroll.workers.host import HOST

        cluster = await self._connected()
        if spec.name not in self._rooms:
            await self.prepare([spec])
        room = self._rooms[spec.name]
        host = cluster.host(room.group, room.place.number)
        options = {
            "num_cpus": self.config.cpus_per_worker,
            "num_gpus": 0 if room.shared else spec.gpus,
            "scheduling_strategy": at(room.group, room.place.number),
            "runtime_env": {"env_vars": {**spec.environment, **({HOST: host} if host else {})}},
        }
        devices = ",".join(room.place.devices) if room.shared and spec.gpus else None
        worker = await RayWorker.start(spec, options, devices, self.config.startup_timeout)
        worker.on_death = self.died
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        """Ends the actors, then gives the room back and leaves the cluster, whatever goes wrong before."""
        from reroll.workers.together import together

        workers, self._workers = self._workers, []
        try:
            await together(worker.close() for worker in workers)
        finally:
            if self._cluster is not None:
                await self._cluster.close()
