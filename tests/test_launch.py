"""`reroll run` on this machine: runs that go on by themselves, with real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launching import (
    LONG,
    SAVES,
    command,
    ending,
    exported,
    kill_run,
    receipt,
    said,
    standing,
    started,
    submit,
    wait_for,
    wait_for_end,
    wait_for_start,
    wait_for_step,
)

from reroll.launch.attempts import read_attempts
from reroll.launch.local import birth


@pytest.fixture
def ended(tmp_path):
    with ending(tmp_path / "out"):
        yield


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ended")]


def test_the_quickstart_goes_on_without_its_terminal_and_is_followed_to_its_end(tmp_path):
    path, output = Path(__file__).parents[1] / "configs" / "quickstart.toml", tmp_path / "out"
    sets = [f"output.dir={str(output)!r}", "rollout.num_rollout=3", "eval.sets[0].task_set.size=8"]
    terminal = subprocess.Popen(
        [sys.executable, "-m", "reroll", "run", str(path), "--json", *(f"--set={each}" for each in sets)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    told = json.loads(terminal.communicate()[0])
    assert told["output"] == str(output)
    assert told["handle"]["pid"] != terminal.pid
    assert os.getsid(told["handle"]["pid"]) == told["handle"]["pid"], "a hang-up of the terminal does not reach it"
    followed = [json.loads(line) for line in command("status", "-f", "--json", output).splitlines()]
    assert {item["state"] for item in followed[:-1]} <= {"starting", "running", "restarting"}
    assert all(item["alive"] for item in followed[:-1])
    last = followed[-1]
    assert (last["state"], last["alive"], last["starts"], last["backend"]) == ("completed", False, 1, "local")
    assert (last["collections"], last["num_rollout"], last["step"]) == (3, 3, 3)
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert last["metrics"]["train/loss"] == [line for line in metrics if "train/loss" in line][-1]["train/loss"]
    assert last["waits"] == {name: last["metrics"][f"wait/{name}_seconds"] for name in ("trainer", "producer")}
    assert "held-out-addition: accuracy" in command("status", output)
    logs = command("logs", output)
    assert logs == said(output)
    assert "collection 3/3" in logs
    assert command("logs", output, "-n", "2") == "".join(logs.splitlines(keepends=True)[-2:])
    assert "ended already: completed" in command("stop", output)


def test_a_killed_run_comes_to_the_end_of_an_unbroken_one(run_file, tmp_path):
    """First its process alone is killed, then every process of the job."""
    path, output = run_file(), tmp_path / "out"
    options = [*SAVES, "rollout.num_rollout=6"]
    submit(path, output, *options)
    wait_for_step(output, 1)
    kill_run(output, 1)
    wait_for_start(output, 2)
    wait_for_step(output, 3)
    os.killpg(receipt(output)["handle"]["pid"], signal.SIGKILL)
    killed = wait_for_end(output)
    assert (killed.state, killed.starts, killed.alive) == ("killed", 2, False)
    assert "killed" in command("status", output)
    submit(path, output, *options)
    ended = wait_for_end(output)
    assert (ended.state, ended.starts, ended.step, ended.collections) == ("completed", 3, 6, 6), said(output)
    assert [item.from_step is not None for item in ended.attempts] == [False, True, True]
    assert "the run was ended by SIGKILL; it is started again" in said(output)
    straight = tmp_path / "straight"
    command("train", path, *(part for item in (f"output.dir={str(straight)!r}", *options) for part in ("--set", item)))
    assert exported(output) == exported(straight)


def test_the_cap_stops_the_third_start_when_it_is_two(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    options = [*SAVES, *LONG, "launch.max_retries=2"]
    submit(path, output, *options)
    kill_run(output, 1)
    kill_run(output, 2)
    ended = wait_for_end(output)
    assert (ended.state, ended.starts, ended.max_retries) == ("killed", 2, 2)
    assert "launch.max_retries = 2: the run in" in ended.message
    assert "was started 2 times" in ended.message
    assert "launch.max_retries = 2" in submit(path, output, *options, code=1)
    assert started(output) == 2
    assert standing(output).alive is False


def test_a_stopped_run_keeps_a_checkpoint_and_is_not_started_again(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    submit(path, output, *SAVES, *LONG)
    assert "goes on already" in submit(path, output, *SAVES, *LONG, code=1)
    wait_for_step(output, 2)
    assert "interrupted" in command("stop", output)
    ended = standing(output)
    assert (ended.state, ended.starts, ended.message) == ("interrupted", 1, "by SIGTERM")
    assert ended.checkpoint is not None
    assert ended.step == int(ended.checkpoint.removeprefix("step_"))
    submit(path, output, *SAVES, f"rollout.num_rollout={ended.collections}")
    assert wait_for_end(output).state == "completed"
    summary = json.loads((output / "summary.json").read_text())
    assert Path(summary["checkpoint"]).name == ended.checkpoint, "which this start had no reason to write again"


def test_a_run_whose_supervisor_is_gone_is_found_and_stopped(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    submit(path, output, *SAVES, *LONG)
    pid = wait_for_start(output, 1)
    wait_for_step(output, 1)
    os.kill(receipt(output)["handle"]["pid"], signal.SIGKILL)
    alone = standing(output)
    assert (alone.state, alone.alive) == ("running", True)
    assert f"process {pid} on {socket.gethostname()}" in alone.where
    assert "goes on already" in submit(path, output, *SAVES, *LONG, code=1)
    command("stop", output)
    assert standing(output).state == "interrupted"


def test_a_lost_worker_counts_as_killed_and_a_failure_as_often_as_retries_says(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    submit(path, output, *SAVES, *LONG)
    pid = wait_for_start(output, 1)
    wait_for_step(output, 1)
    workers = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True).stdout
    trainer = next(line.split()[0] for line in workers.splitlines() if "workers" in line)
    os.kill(int(trainer), signal.SIGKILL)
    wait_for_start(output, 2)
    assert "lost a worker; it is started again" in said(output)
    command("stop", "--now", output)
    assert standing(output).state in ("killed", "failed")
    failing = ["rollout.temperature=0.01", "rollout.n_samples_per_prompt=2", "rollout.max_empty_collections=1"]
    again = tmp_path / "again"
    submit(path, again, *SAVES, *LONG, *failing, "launch.retries=1")
    ended = wait_for_end(again)
    assert (ended.state, ended.starts) == ("failed", 2)
    assert "launch.retries = 1" in ended.message


def test_of_many_at_once_one_starts(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    sets = ["--set", f"output.dir={str(output)!r}", *(part for item in LONG for part in ("--set", item))]
    arguments = [sys.executable, "-m", "reroll", "run", str(path), *sets]
    several = [subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate() for process in several]
    assert sorted(process.returncode for process in several).count(0) == 1, told
    wait_for_start(output, 1)
    wait_for(output, lambda: standing(output).state == "running", "running")
    command("stop", "--now", output)
    assert len(read_attempts(output)) == 1
    assert birth(receipt(output)["handle"]["pid"]) is None


def test_low_priority_reaches_every_process(run_file, tmp_path):
    output = tmp_path / "out"
    submit(run_file(), output, *LONG, 'launch.priority="low"')
    pid = wait_for_start(output, 1)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10
    command("stop", "--now", output)
