"""A Ray cluster of two nodes on this machine, on loopback alone, and what is left in it."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from unittest.mock import patch

QUIET = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray takes the machine's own address in place of a loopback one, except where it knows no clusters.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
NODE = {
    "num_cpus": 2,
    "num_gpus": 2,
    "object_store_memory": 80 * 2**20,
    "node_ip_address": "127.0.0.1",
    "include_dashboard": False,
}
"""The GPUs are said to be there, so that Ray hands their numbers out. The store is about the least that Ray takes."""
ASK = """
import sys, ray
from ray.util import placement_group_table
from ray._private.state import actors
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print([name for name, actor in actors().items() if actor["State"] != "DEAD"])
print([name for name, group in placement_group_table().items() if group["state"] != "REMOVED"])
"""


@contextmanager
def quiet_ray(**environment):
    """Ray in here keeps its files in a folder of its own, in the system's: sockets take no long paths."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        patch.dict(os.environ, {**QUIET, "RAY_TMPDIR": folder, **environment}),
    ):
        yield


@contextmanager
def two_nodes(modules, dashboard=False):
    """Starts the nodes and gives the address. Workers can import what lies in the folder `modules`.

    Args:
        dashboard: starts what takes jobs as well.
    """
    with quiet_ray(PYTHONPATH=os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])):
        from ray.cluster_utils import Cluster

        head = {**NODE, "include_dashboard": dashboard}
        if dashboard:
            head |= {"dashboard_host": "127.0.0.1", "dashboard_port": 0}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**NODE)
            yield cluster.address
        finally:
            cluster.shutdown()


def left_over(address):
    """Actors that live, and placement groups that hold room, as another program sees them."""
    done = subprocess.run([sys.executable, "-c", ASK, address], capture_output=True, text=True, check=True)
    actors, groups = done.stdout.strip().splitlines()[-2:]
    return eval(actors), eval(groups)
