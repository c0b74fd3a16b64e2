"""`reroll train` as a user runs it: a process, its files, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from driving import RUN
from forked_commands import ForkedCommand
from launching import LONG

from reroll.api import WORKER_LOST

EVAL = """
[eval]
eval_interval = 2
[[eval.sets]]
name = "held-out"
task_set = { name = "addition", high = 40, split = "held_out", size = 8, verifier = "regex" }
[output]
export_hf = true
"""


def command(path, *overrides):
    sets = [part for override in overrides for part in ("--set", override)]
    return [sys.executable, "-m", "reroll", "train", str(path), *sets]


def test_a_run_leaves_what_the_design_says(run_file, tmp_path):
    path, output = run_file(RUN + EVAL), tmp_path / "out"
    overrides = [f'output.dir="{output}"', "rollout.num_rollout=4"]
    code = (
        "import sys; from reroll.cli import main\n"
        "try: main()\n"
        "finally: print('loaded', sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command(path, *overrides)[3:]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "loaded []" in done.stdout, "the controller of a running train has no torch"
    summary = json.loads((output / "summary.json").read_text())
    assert summary["ended"] == "completed"
    assert summary["steps"] >= 2
    assert summary["trained_samples"] > 0
    assert summary["wall_seconds"] > summary["training_wall_seconds"] > 0
    assert summary["generated_tokens_per_second"] > 0
    assert summary["trained_tokens_per_second"] > 0
    assert set(summary["eval"]["before"]["sets"]) == {"held-out"}
    assert summary["eval"]["before"]["sets"]["held-out"]["step"] == 0
    assert summary["eval"]["after"]["sets"]["held-out"]["step"] == summary["steps"]
    assert len(summary["eval"]["after"]["sets"]["held-out"]["fingerprint"]) == 64
    ledger = summary["ledger"]
    assert ledger.pop("dispatched") == sum(ledger.values()) == 16
    assert ledger["in_flight"] == 0
    assert (output / "eval" / "held-out" / "step_0" / "rollouts.jsonl").exists()
    assert json.loads((output / "context.json").read_text())["seeds"] == {"run": 0, "data": 0, "rollout": 0}
    lines = done.stdout.splitlines()
    assert any(line.startswith("held-out: accuracy ") and "points" in line for line in lines)
    assert any(line.startswith("  parse rate ") for line in lines)
    assert any(line.startswith("rollouts: ") for line in lines)
    assert (output / "run.toml").exists()
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/held-out/accuracy", "rollout/reward", "train/grad_norm"} <= {
        name for line in metrics for name in line
    }
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(output / "model")
    AutoTokenizer.from_pretrained(output / "model")
    again = subprocess.run(command(path, *overrides), capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def start(path, tmp_path, *overrides, forked=True):
    """A long run that has begun to train, its output folder, what it prints, and the processes below it.

    Args:
        forked: from a process that has the imports. Otherwise it is a command as a user starts it.
    """
    output, log = tmp_path / "out", tmp_path / "log"
    line = command(path, f'output.dir="{output}"', *LONG, *overrides)
    with log.open("wb") as file:
        run = ForkedCommand(line[3:], log) if forked else subprocess.Popen(line, stdout=file, stderr=file)
    wait_for(lambda said: "\ncollection 2/" in said, run, log)
    return run, output, log, psutil.Process(run.pid).children(recursive=True)


def wait_for(happened, run, log):
    """Gives what a run has printed once that is as wanted."""
    while not happened(said := log.read_text()):
        assert run.poll() is None, said
        time.sleep(0.01)
    return said


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_a_run_cleanly(run_file, tmp_path, number):
    run, output, log, children = start(run_file(), tmp_path)
    run.send_signal(number)
    assert run.wait(60) == 128 + number
    said = log.read_text()
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["ended"], summary["message"]) == ("interrupted", f"by {number.name}")
    assert summary["collections"] >= 2
    assert "kept:" in said
    assert f"rollouts: {output / 'rollouts'}" in said
    assert "Traceback" not in said
    assert gone(children)


def worker(children, name):
    """The child that serves as `name`, by the log that it writes to."""
    for child in children:
        if child.open_files() and any(f"{name}.log" in file.path for file in child.open_files()):
            return child
        try:
            target = os.readlink(f"/proc/{child.pid}/fd/2")
        except OSError:
            continue
        if target.endswith(f"{name}.log"):
            return child
    raise AssertionError(f"no process writes {name}.log")


@pytest.mark.parametrize("name", ["engine-0", pytest.param("trainer", marks=pytest.mark.slow)])
def test_a_killed_worker_ends_the_run_with_its_name(run_file, tmp_path, name):
    run, output, log, children = start(run_file(), tmp_path)
    worker(children, name).kill()
    assert run.wait(60) == WORKER_LOST
    assert f"worker '{name}' was killed by SIGKILL" in log.read_text()
    summary = json.loads((output / "summary.json").read_text())
    assert summary["ended"] == "failed"
    assert name in summary["message"]
    assert gone(children)


def test_a_killed_controller_leaves_no_process(run_file, tmp_path):
    run, *_, children = start(run_file(), tmp_path, forked=False)
    run.kill()
    run.wait()
    assert gone(children)
