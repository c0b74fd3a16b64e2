"""Shards of a generation on the nodes of a Ray cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
from ray_cluster import left_over, two_nodes
from test_generate import GREEDY, RUN, command, generate, outputs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def address():
    with two_nodes(Path(__file__).parent) as address:
        yield address


def test_shards_run_on_the_nodes_of_a_cluster_and_are_merged(address, tmp_path):
    path, folder = tmp_path / "generate.toml", tmp_path / "shards"
    path.write_text(RUN.replace("TASKS", "30"))
    generate(path, tmp_path / "whole", sets=GREEDY)
    on_ray = f'placement.backend={{ name = "ray", address = "{address}", startup_timeout = 60 }}'
    index = tmp_path / "index.parquet"
    sets = [*GREEDY, on_ray, f"generation.output_index={str(index)!r}"]
    done = subprocess.run(
        command(path, folder, "--shards", "3", sets=sets), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert all(f"shard {number} of 3: finished" in done.stderr for number in (1, 2, 3))
    merged = index.with_name("index.summary.csv").read_bytes(), index.read_bytes()
    assert merged == outputs(tmp_path / "whole")
    assert left_over(address) == ([], [])


def test_shards_need_a_cluster(tmp_path):
    path = tmp_path / "generate.toml"
    path.write_text(RUN.replace("TASKS", "3"))
    done = subprocess.run(
        [sys.executable, "-m", "reroll", "generate", str(path), "--shards", "2"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "placement.backend" in done.stderr
