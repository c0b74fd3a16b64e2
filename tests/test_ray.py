"""Workers on a Ray cluster of two nodes: what a run computes there, and what it leaves there."""

from pathlib import Path

import pytest
from driving import run_and_watch
from ray_cluster import short_folder, two_nodes

pytestmark = pytest.mark.ray
CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture(scope="module")
def address():
    with short_folder() as folder, two_nodes(folder) as address:
        yield address


def on_ray(address):
    return f'placement.backend={{ name = "ray", address = "{address}" }}'


def test_the_quickstart_on_ray_gives_what_it_gives_locally(address, tmp_path):
    held_out = 'eval.sets=[{ name = "held-out", task_set = { name = "addition", split = "held_out", size = 8 } }]'
    quick = ["rollout.num_rollout=3", held_out, "output.export_hf=false"]
    path = CONFIGS / "quickstart-sync.toml"
    local = run_and_watch(path, tmp_path / "local", *quick)
    remote = run_and_watch(path, tmp_path / "ray", *quick, on_ray(address))
    assert remote.token_ids == local.token_ids
    assert remote.gradients == local.gradients
    assert remote.weights == local.weights
    assert remote.engine_weights == local.engine_weights == local.weights
    assert len(set(local.weights)) == 3
