"""`reroll run` on a Ray cluster: the run is a job of it."""

import os
import signal
from pathlib import Path

import pytest
from launching import (
    LONG,
    SAVES,
    command,
    exported,
    kill_run,
    receipt,
    receipts,
    said,
    standing,
    started,
    submit,
    wait_for,
    wait_for_end,
    wait_for_start,
    wait_for_step,
)
from ray_cluster import two_nodes

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def address():
    with two_nodes(Path(__file__).parent, dashboard=True) as address:
        yield address


@pytest.fixture
def backend(address):
    return f'launch.backend={{ name = "ray", address = "{address}" }}'


def test_the_quickstart_is_followed_to_its_end(backend, tmp_path):
    path, output = Path(__file__).parents[1] / "configs" / "quickstart.toml", tmp_path / "out"
    # Its workers are actors of the cluster that the job is of. The nodes only say that they have GPUs.
    quick = ["rollout.num_rollout=3", "eval.sets[0].task_set.size=8", 'trainer.device="cpu"']
    submit(path, output, backend, 'placement.backend="ray"', *quick)
    job = receipt(output)["handle"]["job"]
    assert job.startswith("reroll-quickstart-")
    assert "completed" in command("status", "-f", output)
    ended = standing(output)
    assert (ended.state, ended.alive, ended.backend, ended.starts, ended.step) == ("completed", False, "ray", 1, 3)
    assert "collection 3/3" in command("logs", output)


def test_a_killed_job_comes_to_the_end_of_an_unbroken_one(backend, run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    options = [*SAVES, "rollout.num_rollout=5", backend]
    submit(path, output, *options)
    wait_for_step(output, 1)
    assert receipt(output)["handle"]["job"] in standing(output).where
    kill_run(output, 1)
    pid = wait_for_start(output, 2)
    wait_for_step(output, 2)
    supervisor = int(said(output).split("supervisor: process ")[1].split()[0])
    for number in (supervisor, pid):
        os.kill(number, signal.SIGKILL)
    assert wait_for_end(output).state == "killed"
    submit(path, output, *options)
    ended = wait_for_end(output)
    assert (ended.state, ended.starts, ended.step) == ("completed", 3, 5), said(output)
    straight = tmp_path / "straight"
    sets = [f"output.dir={str(straight)!r}", *options[:-1]]
    command("train", path, *(part for item in sets for part in ("--set", item)))
    assert exported(output) == exported(straight)


def test_a_job_ends_when_it_is_asked_to_or_told_to(backend, run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    submit(path, output, *SAVES, *LONG, "launch.max_retries=2", backend)
    wait_for_step(output, 1)
    assert "interrupted" in command("stop", output)
    assert standing(output).checkpoint is not None
    submit(path, output, *SAVES, *LONG, "launch.max_retries=2", backend)
    wait_for_start(output, 2)
    wait_for(output, lambda: standing(output).state == "running", "running")
    command("stop", "--now", output)
    assert standing(output).state in ("killed", "interrupted"), "Ray asks first, and kills three seconds later"
    assert "launch.max_retries = 2" in submit(path, output, *SAVES, "launch.max_retries=2", backend, code=1)
    assert started(output) == 2


def test_a_cluster_that_is_not_there_is_told_and_leaves_no_receipt(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    nowhere = 'launch.backend={ name = "ray", address = "http://127.0.0.1:9" }'
    told = submit(path, output, nowhere, code=1)
    assert "no Ray cluster with a dashboard at http://127.0.0.1:9" in told
    assert receipts(output) == []
    submit(path, output, "rollout.num_rollout=1")
    assert wait_for_end(output).state == "completed"
