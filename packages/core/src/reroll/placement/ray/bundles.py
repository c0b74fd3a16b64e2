"""Which workers share a bundle of resources, and which of the placed bundles each of them gets. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from reroll.api import WorkerSpec


@dataclass(frozen=True)
class Bundle:
    """Resources on one node, for the workers in `members`, by position among the specs."""

    cpus: float
    gpus: int
    members: tuple[int, ...]

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": float(self.gpus)} if self.gpus else {})}


@dataclass(frozen=True)
class Place:
    """Where Ray put a bundle.

    Attributes:
        number: of the bundle in its placement group.
        address: of the node; two nodes may have the same.
        devices: ids of the GPUs, as `CUDA_VISIBLE_DEVICES` names them.
    """

    number: int
    node: str
    address: str
    devices: tuple[str, ...] = field(default=())


def make_bundles(specs: Sequence[WorkerSpec], cpus: float, share_devices: bool) -> list[Bundle]:
    """One bundle a worker, trainer ranks first in their order. Where devices are shared, an engine's bundle has the
    next ranks in it as well, one for each of its devices."""
    ranks = [number for number, spec in enumerate(specs) if spec.role == "trainer"]
    others = [number for number, spec in enumerate(specs) if spec.role != "trainer"]
    if not share_devices:
        return [Bundle(cpus, specs[number].gpus, (number,)) for number in (*ranks, *others)]
    bundles, left = [], list(ranks)
    for number in others:
        count = max(specs[number].gpus, 1) if specs[number].role == "engine" else 0
        sharing, left = left[:count], left[count:]
        gpus = max(specs[number].gpus, sum(specs[rank].gpus for rank in sharing))
        bundles.append(Bundle(cpus * (1 + len(sharing)), gpus, (*sharing, number)))
    alone = [Bundle(cpus, specs[rank].gpus, (rank,)) for rank in left]
    return sorted([*bundles, *alone], key=lambda bundle: bundle.members)


def assign(bundles: Sequence[Bundle], places: Sequence[Place]) -> dict[int, Place]:
    """The place of each worker, by its position.

    Ray promises no order: places go by node and device to bundles of the same resources, first to the first ranks, so
    that ranks which follow each other are neighbours.
    """
    free = sorted(places, key=_position)
    found: dict[int, Place] = {}
    for bundle in bundles:
        place = next(
            place for place in free if bundles[place.number].resources == bundle.resources
        )  # as many as bundles of these resources
        free.remove(place)
        found |= dict.fromkeys(bundle.members, place)
    return found


def _position(place: Place) -> tuple[object, ...]:
    devices = tuple((0, int(name), "") if name.isdecimal() else (1, 0, name) for name in place.devices)
    return (*_address(place.address), place.node, devices, place.number)


def _address(address: str) -> tuple[int, int, str]:
    """Addresses as numbers, so that 10.0.0.9 comes before 10.0.0.10; names after them."""
    try:
        return (0, int(ipaddress.ip_address(address)), "")
    except ValueError:
        return (1, 0, address)
