"""One run, and the same run after it went back to a checkpoint, as every tracker has it."""

import json
import shutil
import sqlite3
import subprocess
import sys

import pytest
import tracker_stores
from driving import RUN
from killing import run_to_end

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.plugins import load_plugins

pytestmark = pytest.mark.slow

TRACKED = (
    RUN
    + """
[eval]
eval_interval = 2
[[eval.sets]]
name = "held-out"
task_set = { name = "addition", split = "held_out", size = 4, verifier = "regex" }
[output]
rollout_sample_rate = 0.5
[trackers]
names = ["jsonl", "tensorboard", "trackio", { name = "wandb", wandb_mode = "offline" }]
[checkpoint]
save_interval = 1
[launch]
auto_resume = true
"""
)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run of three collections; and a copy of it that lost its last checkpoint, and went on to the fourth."""
    folder = tmp_path_factory.mktemp("tracked")
    path = folder / "run.toml"
    path.write_text(TRACKED)
    output = folder / "once"
    run_to_end(path, output)
    again = folder / "again"
    shutil.copytree(output, again, symlinks=True)
    steps = sorted(int(item.name.removeprefix("step_")) for item in (again / "checkpoints").iterdir())
    shutil.rmtree(again / "checkpoints" / f"step_{steps[-1]}")
    run_to_end(path, again, "rollout.num_rollout=4")
    return output, again


def assert_equal_series(found, expected):
    assert set(found) == set(expected)
    for name, series in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in series], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in series], rel=2e-7), name


@pytest.mark.parametrize("start", [0, 1], ids=["once", "resumed"])
@pytest.mark.parametrize("tracker", tracker_stores.STORES)
def test_every_tracker_has_the_same_series(tracked, tracker, start):
    numbers, words = tracker_stores.jsonl(tracked[start])
    assert len(numbers) > 50
    assert "train/scoring_pass" in words
    steps = [step for step, _ in numbers["train/loss"]]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost, and none is there twice"
    found, found_words = tracker_stores.STORES[tracker](tracked[start])
    assert_equal_series(found, numbers)
    found_words.pop("generations", None)
    if tracker == "tensorboard":  # does not drop words of steps that were made again: the later one is below
        found_words = {name: sorted(dict(series).items()) for name, series in found_words.items()}
    assert found_words == words


def test_wandb_draws_every_metric_over_steps(tracked):
    numbers, words = tracker_stores.jsonl(tracked[0])
    axes = tracker_stores.wandb_axes(tracked[0])
    assert (axes.pop("step"), axes.pop("rollout/collections")) == ("", "")
    assert axes == dict.fromkeys({*numbers, *words} - {"rollout/collections"}, "step")


def test_steps_beyond_the_checkpoint_were_there_before_the_resumed_start(tracked):
    """Otherwise the test above would show nothing of them."""
    once, again = tracked
    for name in ("metrics", "generations"):
        assert (again / f"{name}.superseded.jsonl").exists()
    assert not (once / "metrics.superseded.jsonl").exists()
    last = max(step for step, _ in tracker_stores.jsonl(once)[0]["train/loss"])
    superseded = [json.loads(line) for line in (again / "metrics.superseded.jsonl").read_text().splitlines()]
    assert {line["step"] for line in superseded} == {last}


def test_conversations_are_whole_groups_and_every_tracker_has_them(tracked):
    output = tracked[1]
    groups = [json.loads(line) for line in (output / "generations.jsonl").read_text().splitlines()]
    assert 0 < len(groups) < 16
    assert all(len(group["responses"]) == 4 for group in groups)
    saved = set()
    for path in output.glob("rollouts/step_*/train_rollouts.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            saved.add((record["nodes"][-1]["message"]["content"], record["info"]["reroll"]["reward"]))
    for group in groups:
        assert {(item["text"], item["reward"]) for item in group["responses"]} <= saved
        assert all(item["weight_versions"] for item in group["responses"])
    shown = sorted(item["text"] for group in groups for item in group["responses"])

    with sqlite3.connect(next((output / "trackio").glob("*.db"))) as connection:
        rows = [json.loads(row) for (row,) in connection.execute("SELECT metrics FROM metrics")]
    tables = [row["generations"]["_value"] for row in rows if "generations" in row]
    assert sorted(row["response"] for table in tables for row in table) == shown

    text = tracker_stores.tensorboard(output)[1]["generations"]
    tables = dict(text).values()
    assert sum(table.count("\n") - 1 for table in tables) == len(shown)

    files = output.glob("wandb/offline-run-*/files/media/table/*.json")
    texts = [row[5] for path in files for row in json.loads(path.read_text())["data"]]
    assert set(texts) >= set(shown), "W&B's folders have those of the first start as well"


def test_equal_runs_and_resumed_ones_show_the_same_groups(tracked):
    def tasks(output):
        lines = map(json.loads, (output / "generations.jsonl").read_text().splitlines())
        return [(line["collection"], line["task"]) for line in lines]

    once, again = map(tasks, tracked)
    assert again[: len(once)] == once


def problems(tmp_path, names):
    path = tmp_path / "run.toml"
    path.write_text(RUN + f"[trackers]\nnames = {names}\n")
    run = load_run_file(path, [], load_plugins())
    found = [problem for section in run.sections.values() for problem in section.validate_files(run, thorough=False)]
    return {problem.key: problem.message for problem in found if problem.key.startswith("trackers")}


def test_wandb_without_a_key_is_told_before_the_run(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    told = problems(tmp_path, '["jsonl", "wandb"]')
    assert set(told) == {"trackers.names[1]"}
    assert "WANDB_API_KEY is not set" in told["trackers.names[1]"]
    assert problems(tmp_path, '[{ name = "wandb", wandb_mode = "offline" }]') == {}
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert problems(tmp_path, '["wandb"]') == {}


def test_a_tracker_that_is_not_installed_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    absent = {"wandb", "tensorboardX", "trackio"}
    for module in ("to_wandb", "to_tensorboard", "to_trackio"):
        hide = lambda name, package=None: None if name in absent else find(name, package)  # noqa: E731
        monkeypatch.setattr(f"reroll.reporting.{module}.find_spec", hide)
    told = problems(tmp_path, '["tensorboard", "trackio", "wandb"]')
    for index, name in enumerate(("tensorboard", "trackio", "wandb")):
        assert told[f"trackers.names[{index}]"].endswith(f"pip install 'reroll[{name}]'")


@pytest.mark.parametrize("rate", ["-0.1", "nan", "true"])
def test_a_share_that_is_none_is_refused(tmp_path, rate):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    with pytest.raises(RunFileError, match="output.rollout_sample_rate"):
        load_run_file(path, [f"output.rollout_sample_rate={rate}"], load_plugins())


SILENT = """
import os, socket, sys
from pathlib import Path
from reroll.api import Protocol, RunContext, Seeds
from reroll.reporting import to_wandb
from reroll.reporting.trackers import Trackers

server = socket.create_server(("127.0.0.1", 0))
os.environ["WANDB_BASE_URL"] = "http://127.0.0.1:%d" % server.getsockname()[1]
os.environ["WANDB_API_KEY"] = "0" * 40
to_wandb.START_SECONDS = 1
output = Path(sys.argv[1])
(output / "run.toml").write_text("")
told = []
trackers = Trackers([to_wandb.WandbTracker()], told.append)
protocol = Protocol({}, 100, "single_turn", [], "", "", "", {}, "exclude", True)
run = RunContext("id", "name", "1", True, 0, "a model", {}, protocol, Seeds(0, 0, 0), output, {})
trackers.open(run)
for step in range(3):
    trackers.log(step, {"train/loss": step / 4})
trackers.close()
sys.exit(str(told) if told else 0)
"""


def test_a_service_that_never_answers_keeps_no_metrics_from_their_files(tmp_path):
    command = [sys.executable, "-c", SILENT, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert "for `wandb sync`" in ended.stderr
    assert tracker_stores.wandb(tmp_path)[0] == {"train/loss": [(0, 0), (1, 0.25), (2, 0.5)]}
