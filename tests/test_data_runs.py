"""Runs on prepared data, from the command that prepares it to what is trained on, saved and resumed."""

import json
import subprocess
import sys

import pytest
from driving import RUN, run_and_watch

from reroll.api import RerollError
from reroll.tasks.catalog.manifest import read_manifest

SAVES = ["checkpoint.save_interval=1", "launch.auto_resume=true", "rollout.group_filters=[]"]


def reroll(*arguments):
    return subprocess.run([sys.executable, "-m", "reroll", *map(str, arguments)], capture_output=True, text=True)


def prepared(output, high):
    done = reroll("data", "prepare", "multiplication", "--output", output, "--option", f"high={high}",
                  "--option", 'verifier="regex"', "--option", "test_size=2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output / "manifest.json"


def adopting(manifest):
    held_out = f'{{ name = "manifest", path = "{manifest}", split = "test" }}'
    lines = [line for line in RUN.splitlines() if not line.startswith("task_set")]
    text = "\n".join(lines).replace("[data]", f'[data]\nmanifest = "{manifest}"')
    return f'{text}\n[eval]\neval_interval = 1\n[[eval.sets]]\nname = "products"\ntask_set = {held_out}\n'


def test_a_run_on_a_prepared_data_set_knows_its_tasks(run_file, tmp_path):
    manifest = prepared(tmp_path / "data", high=9)
    path, output = run_file(adopting(manifest)), tmp_path / "out"
    seen = run_and_watch(path, output, "rollout.num_rollout=2", "rollout.group_filters=[]")
    assert len(seen.weights) == 2 and seen.summary.trained_samples == 32
    lines = [
        json.loads(line)
        for number in (0, 1)
        for line in (output / "rollouts" / f"step_{number}" / "train_rollouts.jsonl").read_text().splitlines()
    ]
    rows = [json.loads(line) for line in read_manifest(manifest).file("train").read_text().splitlines()]
    assert len({line["task"]["source_row"] for line in lines}) == 8
    for line in lines:
        task = line["task"]
        row = rows[task["source_row"]]
        assert task["source_dataset"] == "multiplication/train"
        assert task["prepared_sample_id"] == row["prepared_sample_id"]
        assert (task["prompt"], task["targets"]) == (row["messages"], row["targets"])


@pytest.mark.slow
def test_a_run_goes_on_under_its_own_manifest_wherever_that_is(run_file, tmp_path):
    manifest = prepared(tmp_path / "data", high=9)
    path, output = run_file(adopting(manifest)), tmp_path / "out"
    run_and_watch(path, output, "rollout.num_rollout=1", *SAVES)
    other = prepared(tmp_path / "other", high=8)
    with pytest.raises(RerollError, match=r"data.fingerprint: .* in the checkpoint, .* now"):
        run_and_watch(run_file(adopting(other)), output, "rollout.num_rollout=2", *SAVES)
    moved = (tmp_path / "data").rename(tmp_path / "moved") / "manifest.json"
    assert len(run_and_watch(run_file(adopting(moved)), output, "rollout.num_rollout=2", *SAVES).weights) == 1


def test_no_command_starts_on_a_file_that_is_not_what_its_manifest_says(run_file, tmp_path):
    manifest = prepared(tmp_path / "data", high=9)
    path = run_file(adopting(manifest))
    file = read_manifest(manifest).file("test")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"What", b"Whot"))
    for command in ("validate", "train"):
        done = reroll(command, path, "--set", f'output.dir="{tmp_path / "out"}"')
        assert done.returncode == 2
        assert "eval.sets[0].task_set: 'manifest' cannot be opened:" in done.stderr
        assert f"{file}: sha256 " in done.stderr and "prepare the data set again" in done.stderr
    assert not (tmp_path / "out").exists()
    assert reroll("plan", path).returncode == 0
