"""Which bundle each worker gets."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import RerollError, WorkerSpec
from reroll.placement.ray import placement
from reroll.placement.ray.bundles import Bundle, Place, assign, make_bundles


def ranks(count, gpus=1):
    return [WorkerSpec(f"trainer-{number}", "", gpus=gpus, role="trainer") for number in range(count)]


def engines(count, gpus=1):
    return [WorkerSpec(f"engine-{number}", "", gpus=gpus, role="engine") for number in range(count)]


def test_a_worker_has_a_bundle_of_its_own():
    bundles = make_bundles([*engines(1, gpus=2), *ranks(2)], 1.0, share_devices=False)
    assert bundles == [Bundle(1.0, 1, (1,)), Bundle(1.0, 1, (2,)), Bundle(1.0, 2, (0,))]
    assert [bundle.resources for bundle in bundles][::2] == [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 2.0}]
    assert make_bundles(engines(1, gpus=0), 0.5, share_devices=False)[0].resources == {"CPU": 0.5}


def test_shared_devices_are_an_engine_and_as_many_ranks():
    bundles = make_bundles([*ranks(5), *engines(2, gpus=2)], 1.0, share_devices=True)
    assert bundles == [Bundle(3.0, 2, (0, 1, 5)), Bundle(3.0, 2, (2, 3, 6)), Bundle(1.0, 1, (4,))]
    bundles = make_bundles([*ranks(1, gpus=0), *engines(2, gpus=0)], 1.0, share_devices=True)
    assert bundles == [Bundle(2.0, 0, (0, 1)), Bundle(1.0, 0, (2,))]


def test_ranks_follow_nodes_and_devices():
    """Addresses and devices count as numbers, whatever order Ray gave them in."""
    bundles = make_bundles([*ranks(4), *engines(1)], 1.0, share_devices=False)
    where = [("10.0.0.10", "2"), ("10.0.0.9", "10"), ("10.0.0.9", "2"), ("10.0.0.10", "1"), ("10.0.0.11", "0")]
    places = [Place(number, address, address, (device,)) for number, (address, device) in enumerate(where)]
    found = assign(bundles, places)
    assert [(found[rank].address, *found[rank].devices) for rank in range(5)] == [
        ("10.0.0.9", "2"),
        ("10.0.0.9", "10"),
        ("10.0.0.10", "1"),
        ("10.0.0.10", "2"),
        ("10.0.0.11", "0"),
    ]


def test_nodes_of_one_address_stay_apart():
    bundles = make_bundles(ranks(4, gpus=0), 1.0, share_devices=False)
    places = [Place(number, "ab"[number % 2], "127.0.0.1") for number in range(4)]
    assert [assign(bundles, places)[rank].node for rank in range(4)] == ["a", "a", "b", "b"]


@given(st.data())
def test_every_worker_gets_a_bundle_of_its_resources(data):
    specs = [*ranks(data.draw(st.integers(1, 6))), *engines(data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3)))]
    bundles = make_bundles(specs, 1.0, data.draw(st.booleans()))
    nodes = [data.draw(st.sampled_from(["host", "10.0.0.2", "10.0.0.10"])) for _ in bundles]
    places = [Place(number, node, node) for number, node in enumerate(nodes)]
    found = assign(bundles, data.draw(st.permutations(places)))
    assert sorted(found) == list(range(len(specs)))
    assert len({place.number for place in found.values()}) == len(bundles)
    for bundle in bundles:
        for member in bundle.members:
            assert bundles[found[member].number].resources == bundle.resources


def test_a_ray_client_is_refused():
    from reroll.placement.ray.config import RayPlacementConfig

    with pytest.raises(ValueError, match="start it on a node of the cluster"):
        RayPlacementConfig(address="ray://head:10001")


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(RerollError, match=r"pip install 'reroll\[ray\]'"):
        asyncio.run(placement.RayPlacement().prepare(ranks(1)))
