"""A Ray cluster of two nodes on this machine, on loopback alone, and what is left in it."""

import os
import tempfile
from contextlib import contextmanager

QUIET = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray takes the machine's own address in place of a loopback one, except where it knows no clusters.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
STORE = 80 * 2**20
"""Bytes; about the least that Ray takes."""


@contextmanager
def two_nodes(folder):
    """Starts the nodes, with two CPUs each, and gives the address. `folder` must have a short path, for sockets."""
    os.environ.update({**QUIET, "RAY_TMPDIR": folder})
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": STORE, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()
        os.environ.pop("RAY_TMPDIR")


@contextmanager
def short_folder():
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder


def left_over():
    """Actors that live and placement groups that hold room; asks through a connection of its own."""
    import ray
    from ray.util import placement_group_table
    from ray.util.state import list_actors

    actors = [actor.actor_id for actor in list_actors(filters=[("state", "!=", "DEAD")])]
    groups = [number for number, group in placement_group_table().items() if group["state"] != "REMOVED"]
    return actors, groups, ray
