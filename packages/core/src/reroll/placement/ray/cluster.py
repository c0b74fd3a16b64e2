"""The run's connection to a Ray cluster, and the room that it takes there."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from reroll.api import RerollError
from reroll.placement.ray.bundles import Bundle, Place
from reroll.workers.host import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reroll.placement.ray.config import RayPlacementConfig

T = TypeVar("T")
ASKING_SECONDS = 0.5
"""How long Ray is asked at once whether there is room."""
LEAVING_SECONDS = 5.0


class Cluster:
    """A connection, made by `connect`. What belongs to this program ends with it, however it ends."""

    def __init__(self, config: RayPlacementConfig) -> None:
        self.config = config
        self._ours = False
        self._groups: list[PlacementGroup] = []
        self._joining: asyncio.Future[Any] | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Joins the cluster of the configuration; a program that is connected already stays so.

        Raises:
            RerollError: there is none, or it does not answer.
        """
        async with self._connecting:
            if not ray.is_initialized():
                await self._join()

    async def _join(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._ours = True
        address, quiet = self.config.address, {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            # In a thread: an address where nothing answers is tried for minutes.
            self._joining = asyncio.ensure_future(in_thread(lambda: ray.init(address=address or "auto", **quiet)))
            await asyncio.wait_for(asyncio.shield(self._joining), self.config.startup_timeout)
        except ConnectionError as error:
            if address is not None:
                raise RerollError(
                    f"placement.backend: no Ray cluster at address = {address!r}: {error}; start one with `ray start "
                    "--head`, or leave address out for one of the run's own"
                ) from error
            # Ray starts processes from the main thread alone, and takes signals that the run has use for.
            with _signals_kept():
                ray.init(address="local", include_dashboard=False, **quiet)
        except TimeoutError:
            raise RerollError(
                f"placement.backend: the Ray cluster at address = {address!r} did not answer within "
                f"{self.config.startup_timeout:g} s"
            ) from None

    def gpus(self) -> int:
        return int(ray.cluster_resources().get("GPU", 0))

    async def reserve(self, bundles: Sequence[Bundle]) -> tuple[PlacementGroup, list[Place]]:
        """Takes room for all bundles together, and says where it is."""
        resources = [bundle.resources for bundle in bundles]
        group = placement_group(resources, strategy=self.config.strategy)
        self._groups.append(group)
        clock = asyncio.get_running_loop().time
        until = clock() + self.config.startup_timeout
        while not await in_thread(lambda: group.wait(ASKING_SECONDS)):
            if clock() > until:
                there = {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")}
                free = {name: ray.available_resources().get(name, 0) for name in ("CPU", "GPU")}
                raise RerollError(
                    f"placement.backend: Ray found no room within {self.config.startup_timeout:g} s for bundles of "
                    f"{resources} ({self.config.strategy}); the cluster has {there}, of which are free {free}. Start "
                    "more nodes, lower trainer.num_ranks, serving.num_engines or cpus_per_worker, or raise "
                    "startup_timeout"
                )
        return group, await self._places(group, bundles)

    async def _places(self, group: PlacementGroup, bundles: Sequence[Bundle]) -> list[Place]:
        nodes = placement_group_table(group)["bundles_to_node_id"]
        addresses = _addresses()
        devices = await asyncio.gather(*(_devices(group, number, bundle) for number, bundle in enumerate(bundles)))
        return [
            Place(number, nodes[number], addresses.get(nodes[number], ""), devices[number])
            for number in range(len(bundles))
        ]

    def host(self, group: PlacementGroup, number: int) -> str | None:
        """The address at which a worker in the bundle listens; None for loopback, where there is one machine."""
        addresses = _addresses()
        if len(set(addresses.values()) | {ray.util.get_node_ip_address()}) == 1:
            return None
        address = addresses[placement_group_table(group)["bundles_to_node_id"][number]]
        return None if is_loopback(address) else address

    async def close(self) -> None:
        """Gives the room back, and leaves a cluster that `connect` joined."""
        groups, self._groups = self._groups, []
        if self._joining is not None:  # which goes on after the run was stopped
            await asyncio.wait([self._joining], timeout=LEAVING_SECONDS)
        if not ray.is_initialized():
            return
        for group in groups:
            with suppress(Exception):
                remove_placement_group(group)
        if self._ours:
            self._ours = False
            await in_thread(ray.shutdown)


def at(group: PlacementGroup, number: int) -> PlacementGroupSchedulingStrategy:
    """The option of actors and tasks that puts them into a bundle."""
    return PlacementGroupSchedulingStrategy(group, number, placement_group_capture_child_tasks=False)


def _addresses() -> dict[str, str]:
    """Of the nodes that are alive, by id."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


async def _devices(group: PlacementGroup, number: int, bundle: Bundle) -> tuple[str, ...]:
    """The GPUs of a bundle: a task that takes all of them is told which they are."""
    if not bundle.gpus:
        return ()
    asking = ray.remote(_own_devices).options(
        num_cpus=0, num_gpus=bundle.gpus, scheduling_strategy=at(group, number), max_retries=0
    )
    found: tuple[str, ...] = await asking.remote()
    return found


def _own_devices() -> tuple[str, ...]:
    return tuple(str(name) for name in ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))


async def in_thread(work: Callable[[], T]) -> T:
    """Runs it in a thread that no exit waits for: Ray waits for servers without end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(value) if error is None else done.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, value, failure)

    threading.Thread(target=run, name="ray", daemon=True).start()
    return await done


@contextmanager
def _signals_kept() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)
