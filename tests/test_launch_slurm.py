"""`reroll run` as a batch job, with stand-ins for Slurm's commands."""

import pytest
from launching import (
    LONG,
    SAVES,
    command,
    ending,
    kill_run,
    receipt,
    receipts,
    said,
    standing,
    started,
    submit,
    wait_for_end,
    wait_for_step,
)
from slurm_stand_in import stand_in


def backend(**options):
    given = "".join(f", {name} = {value}" for name, value in options.items())
    return f'launch.backend={{ name = "slurm"{given} }}'


@pytest.fixture(autouse=True)
def slurm(tmp_path, monkeypatch):
    stand_in(tmp_path / "slurm", monkeypatch)
    with ending(tmp_path / "out"):
        yield


@pytest.mark.slow
def test_a_job_is_started_again_in_place_and_bounded(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    options = [*SAVES, *LONG, "launch.max_retries=2", backend()]
    submit(path, output, *options)
    wait_for_step(output, 1)
    kill_run(output, 1)
    wait_for_step(output, 2)
    running = standing(output)
    assert "job running, node1, job 1: RUNNING" in running.where
    kill_run(output, 2)
    ended = wait_for_end(output)
    assert (ended.state, ended.starts, ended.backend) == ("killed", 2, "slurm"), said(output)
    assert "launch.max_retries = 2" in ended.message
    assert "launch.max_retries = 2" in submit(path, output, *options, code=1)


@pytest.mark.slow
def test_a_job_is_followed_stopped_and_gone_on_with(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    submit(path, output, *SAVES, *LONG, backend(setup='["export MADE_READY=yes"]'))
    wait_for_step(output, 1)
    assert "interrupted" in command("stop", output)
    submit(path, output, *SAVES, "rollout.num_rollout=" + str(standing(output).collections + 1), backend())
    assert "completed" in command("status", "-f", output)
    assert receipt(output)["handle"] == {"job": "2", "cluster": None}


def test_what_the_job_asks_for_is_in_its_script(run_file, tmp_path):
    output = tmp_path / "out"
    options = backend(
        partition='"full"',
        account='"lab"',
        qos='"high"',
        time_limit='"12:00:00"',
        gpus='"h100:8"',
        cpus_per_task=16,
        memory='"64G"',
        python='"/opt/env/bin/python"',
        setup='["module load cuda"]',
        container_image='"team/train"',
        options='["--constraint=h100"]',
    )
    mounts = 'launch.mounts=["/data:/data:ro", "/scratch:/scratch"]'
    more = ["launch.auto_resume=true", 'launch.priority="low"', "launch.min_runtime=90", mounts]
    submit(run_file(), output, options, *more)
    script = (output / "launch" / "job.sbatch").read_text()
    for line in (
        "--job-name=run",
        f"--output={output}/launch/slurm-%j.log",
        "--open-mode=append",
        "--nodes=1",
        "--partition=full",
        "--account=lab",
        "--qos=high",
        "--time=12:00:00",
        "--time-min=90",
        "--gpus-per-node=h100:8",
        "--cpus-per-task=16",
        "--mem=64G",
        "--nice=1000",
        "--signal=B:TERM@120",
        "--requeue",
        "--constraint=h100",
    ):
        assert f"#SBATCH {line}\n" in script
    start = f"/opt/env/bin/python -m reroll.launch.supervisor {output}"
    assert "--container-mounts=/data:/data:ro,/scratch:/scratch --container-workdir=" in script
    assert script.index("module load cuda") < script.index("exec srun --container-image=team/train")
    assert script.endswith(f" {start}\n")
    waiting = standing(output)
    assert (waiting.state, waiting.alive, waiting.starts) == ("pending", True, 0)
    assert "job pending, job 1: PENDING (Resources)" in waiting.where
    assert "is pending" in submit(run_file(), output, options, *more, code=1)
    command("stop", output)
    taken_back = standing(output)
    assert (taken_back.state, taken_back.alive) == ("killed", False)
    assert "reroll stop" in taken_back.message
    assert started(output) == 0


def test_what_sbatch_refuses_is_told_and_leaves_no_receipt(run_file, tmp_path):
    output = tmp_path / "out"
    told = submit(run_file(), output, backend(partition='"closed"'), code=1)
    assert "sbatch failed: sbatch: error: invalid partition specified: closed" in told
    assert receipts(output) == []


def test_a_machine_without_slurm_says_so_before_it_makes_a_folder(run_file, tmp_path, monkeypatch):
    (tmp_path / "slurm" / "sbatch").unlink()
    told = submit(run_file(), tmp_path / "out", backend(), code=2)
    assert '"slurm" needs the command sbatch' in told
    assert command("run", "--dry-run", run_file(), "--set", backend(qos='"high"')).count("#SBATCH --qos=high\n") == 1
    assert not (tmp_path / "out").exists()
    command("plan", run_file(), "--set", backend())
    more = [backend(), "launch.min_runtime=5"]
    assert "give launch.backend a time_limit" in submit(run_file(), tmp_path / "out", *more, code=2)
