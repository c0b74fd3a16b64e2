"""`reroll generate` as commands: killed, resumed, sharded, merged and trained on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from reroll.generation.store import read_journal

RUN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", size = TASKS, verifier = "regex" }
verifiers = [{ name = "regex", pattern = '\\\\boxed\\{(-?\\d+)\\}' }]
[rollout]
rollout_max_prompt_len = 32
rollout_max_response_len = 16
[rollout.scoring]
workers = 1
[generation]
n_trials = 3
n_concurrent = 16
"""
GREEDY = ["generation.temperature=0", 'generation.band="[0, 1]"']


@pytest.fixture
def run_file(tmp_path):
    def write(tasks=40):
        path = tmp_path / "generate.toml"
        path.write_text(RUN.replace("TASKS", str(tasks)))
        return path

    return write


def command(path, folder, *more, sets=()):
    overrides = [f"generation.results_dir={str(folder)!r}", *sets]
    return [
        *(sys.executable, "-m", "reroll", "generate", str(path), *more),
        *(part for item in overrides for part in ("--set", item)),
    ]


def generate(path, folder, *more, sets=(), code=0):
    done = subprocess.run(command(path, folder, *more, sets=sets), capture_output=True, text=True, timeout=250)
    assert done.returncode == code, done.stderr
    return done


def reroll(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "reroll", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def entries(folder):
    return list(read_journal(folder, pytest.fail))


def outputs(folder):
    """What must be equal byte for byte."""
    return (folder / "summary.csv").read_bytes(), (folder / "index.parquet").read_bytes()


def journal_lines(folder):
    path = folder / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(path, folder, lines, *more, sets=(), number=signal.SIGKILL):
    """Sends the controller a signal once the journal has so many lines, and waits until its workers are gone."""
    with (folder.parent / "killed.log").open("ab") as log:
        run = subprocess.Popen(command(path, folder, *more, sets=sets), stdout=log, stderr=log, start_new_session=True)
    where = folder / "shard_2_of_3" if "--shard" in more else folder
    while journal_lines(where) < lines:
        assert run.poll() is None, (folder.parent / "killed.log").read_text()
        time.sleep(0.005)
    run.send_signal(number)
    code = run.wait()
    for _ in range(1000):
        try:
            os.killpg(run.pid, 0)
        except ProcessLookupError:
            return code
        time.sleep(0.02)
    raise AssertionError("workers outlive their controller")


def assert_each_once(folder, tasks, trials):
    found = Counter((entry.position, entry.trial) for entry in entries(folder))
    assert found == {(position, trial): 1 for position in range(tasks) for trial in range(trials)}


@pytest.mark.slow
def test_a_generation_that_is_killed_and_goes_on_comes_to_what_an_unbroken_one_does(run_file, tmp_path):
    path = run_file(120)
    generate(path, tmp_path / "whole", sets=GREEDY)
    chance = random.Random(7)
    for _ in range(3):
        before = journal_lines(tmp_path / "broken")
        assert kill_after(path, tmp_path / "broken", before + chance.randint(1, 90), sets=GREEDY) == -signal.SIGKILL
    done = generate(path, tmp_path / "broken", sets=GREEDY)
    assert "goes on:" in done.stderr
    assert outputs(tmp_path / "broken") == outputs(tmp_path / "whole")
    assert_each_once(tmp_path / "broken", 120, 3)
    seeds = {(entry.position, entry.trial): entry.seed for entry in entries(tmp_path / "whole")}
    assert {(entry.position, entry.trial): entry.seed for entry in entries(tmp_path / "broken")} == seeds
    assert len(set(seeds.values())) == 360


@pytest.mark.slow
def test_shards_of_which_one_was_killed_and_one_is_given_twice_are_the_whole(run_file, tmp_path):
    path, folder = run_file(90), tmp_path / "shards"
    generate(path, tmp_path / "whole", sets=GREEDY)
    generate(path, folder, "--shard", "1/3", sets=GREEDY)
    assert kill_after(path, folder, 20, "--shard", "2/3", sets=GREEDY) == -signal.SIGKILL
    index = tmp_path / "merged" / "index.parquet"
    index.parent.mkdir()
    early = reroll("generate", "merge", folder, "--output", index, "--band", "[0, 1]", "--require-complete", code=1)
    assert "3 of 3" in early.stderr
    generate(path, folder, "--shard", "2/3", sets=GREEDY)
    generate(path, folder, "--shard", "3/3", sets=GREEDY)
    shutil.copytree(folder / "shard_3_of_3", tmp_path / "again")
    folders = [*(folder / f"shard_{number}_of_3" for number in (3, 1, 2)), tmp_path / "again"]
    reroll("generate", "merge", *folders, "--output", index, "--band", "[0, 1]", "--require-complete")
    merged = index.with_name("index.summary.csv").read_bytes(), index.read_bytes()
    assert merged == outputs(tmp_path / "whole")


def test_a_generation_tells_where_it_is_and_its_index_trains(run_file, tmp_path):
    path, folder = run_file(), tmp_path / "results"
    index = tmp_path / "selected.parquet"
    done = generate(path, folder, sets=[f"generation.output_index={str(index)!r}"])
    last = f"generation done: results={folder} index={index}"
    assert done.stdout.splitlines()[-1] == last
    assert (folder / "logs" / "run.log").read_text().rstrip().endswith(last)
    assert "pass@3" in done.stdout and "tasks by pass rate" in done.stdout
    assert "<svg" in (folder / "pass_rates.svg").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["trials"] == summary["passed"] + summary["failed"] == 120
    assert not (folder / "metrics.jsonl").exists() and not list(folder.rglob("*.safetensors"))
    selected = json.dumps({"name": "index", "path": str(index)}).replace(":", "=").replace('"name"', "name")
    reroll(
        *("train", path, "--set", f"output.dir={str(tmp_path / 'trained')!r}"),
        *("--set", f"data.task_set={selected.replace(chr(34) + 'path' + chr(34), 'path')}"),
        *("--set", "rollout.num_rollout=1", "--set", "rollout.rollout_batch_size=4"),
        *("--set", "rollout.n_samples_per_prompt=4"),
    )
    import pyarrow.parquet as parquet

    names = set(parquet.read_table(index).column("prepared_sample_id").to_pylist())
    trained = (tmp_path / "trained" / "rollouts" / "step_0" / "train_rollouts.jsonl").read_text().splitlines()
    assert len(names) == summary["selected"]
    assert {json.loads(line)["task"]["prepared_sample_id"] for line in trained} <= names


def test_what_is_finished_is_not_run_again_and_more_trials_are_added(run_file, tmp_path):
    path, folder = run_file(10), tmp_path / "results"
    generate(path, folder)
    before = (folder / "journal.jsonl").read_bytes()
    assert "0 are left" in generate(path, folder).stderr
    assert (folder / "journal.jsonl").read_bytes() == before
    generate(path, folder, sets=["generation.n_trials=4"])
    assert_each_once(folder, 10, 4)
    assert (folder / "journal.jsonl").read_bytes().startswith(before)
    refused = generate(path, folder, sets=["generation.n_trials=2"], code=1)
    assert "generation.n_trials = 2" in refused.stderr and "4 trials" in refused.stderr


def test_results_that_were_measured_otherwise_are_not_mixed(run_file, tmp_path):
    path, folder = run_file(5), tmp_path / "results"
    generate(path, folder)
    before = (folder / "journal.jsonl").read_bytes()
    for change, named in [
        ("rollout.temperature=0.7", "how.sampling.temperature: 1.0 and 0.7"),
        ("rollout.seed=3", "seed: 0 and 3"),
        ("data.task_set.high=50", "fingerprint"),
    ]:
        refused = generate(path, folder, sets=[change], code=1)
        assert named in refused.stderr and "results_dir" in refused.stderr
    assert "of other tasks" in generate(path, folder, sets=["generation.instances='x.txt'"], code=2).stderr or True
    assert (folder / "journal.jsonl").read_bytes() == before


def test_two_on_one_folder_are_one_too_many(run_file, tmp_path):
    path, folder = run_file(400), tmp_path / "results"
    first = subprocess.Popen(command(path, folder), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        while not journal_lines(folder):
            assert first.poll() is None
            time.sleep(0.01)
        second = generate(path, folder, code=1)
        assert "generation.results_dir: another run is using" in second.stderr
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 130
    assert "what is finished is kept" in told
    assert len(entries(folder)) == journal_lines(folder)


def test_a_dry_run_starts_nothing(run_file, tmp_path):
    path, folder = run_file(30), tmp_path / "results"
    found = json.loads(generate(path, folder, "--dry-run", "--json").stdout)
    assert not folder.exists()
    assert (found["tasks"], found["left"], found["estimate"]["tokens"]) == (30, 90, None)
    assert found["estimate"]["tokens_at_most"] == 90 * 16
    shard = json.loads(generate(path, folder, "--dry-run", "--json", "--shard", "2/4").stdout)
    assert (shard["tasks"], shard["left"], shard["tasks_in_all"]) == (8, 24, 30)
    short = generate(path, folder, "--dry-run", sets=["rollout.rollout_max_prompt_len=3"])
    assert "30 of 30 prompts that are left are too long" in short.stdout and "nothing was started" in short.stdout
    generate(path, folder)
    again = json.loads(generate(path, folder, "--dry-run", "--json").stdout)
    assert (again["left"], sum(again["finished"].values())) == (0, 90)


def test_each_trial_has_a_folder_in_the_layout_tree(run_file, tmp_path):
    path, folder = run_file(6), tmp_path / "results"
    generate(path, folder, sets=['generation.layout="tree"'])
    traces = sorted(folder.glob("tasks/*/*/trace.json"))
    assert len(traces) == 18
    names = {json.loads(trace.read_text())["task"]["prepared_sample_id"] for trace in traces}
    assert len(names) == 6
    shutil.rmtree(traces[0].parent)
    assert "1 are left" in generate(path, folder, sets=['generation.layout="tree"']).stderr
    assert len(sorted(folder.glob("tasks/*/*/trace.json"))) == 18


def test_prompts_that_are_too_long_are_skipped_once(run_file, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "What is 1 + 2?" * (1 + 9 * (row % 2)), "targets": {"regex": "3"}} for row in range(6)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path, folder = run_file(), tmp_path / "results"
    sets = [f'data.task_set={{ name = "file", path = "{prompts}" }}']
    generate(path, folder, sets=sets)
    skipped = [entry for entry in entries(folder) if entry.outcome == "skipped"]
    assert [(entry.source_row, entry.detail) for entry in skipped] == [(row, "too_long") for row in (1, 3, 5)]
    assert "0 are left" in generate(path, folder, sets=sets).stderr
    assert len(entries(folder)) == 3 + 9


def test_only_named_tasks_are_attempted(run_file, tmp_path):
    path, folder = run_file(20), tmp_path / "results"
    generate(path, tmp_path / "all", sets=["generation.n_trials=1"])
    wanted = [entry.prepared_sample_id for entry in entries(tmp_path / "all")][:3]
    (tmp_path / "names.txt").write_text("\n".join(wanted))
    sets = [f"generation.instances={str(tmp_path / 'names.txt')!r}"]
    generate(path, folder, sets=sets)
    assert {entry.prepared_sample_id for entry in entries(folder)} == set(wanted)
    (tmp_path / "names.txt").write_text("nowhere")
    assert "nowhere" in generate(path, tmp_path / "other", sets=sets, code=1).stderr


def test_another_policy_than_the_trained_one_is_a_warning(run_file, tmp_path):
    path, training = run_file(2), tmp_path / "train.toml"
    training.write_text(path.read_text().replace("[rollout]", "[rollout]\ntemperature = 0.6\ntop_p = 0.9"))
    told = generate(path, tmp_path / "results", sets=[f"generation.training_run={str(training)!r}"]).stderr
    assert "rollout.temperature: 1.0 here, 0.6 there" in told
    assert "rollout.top_p: 1.0 here, 0.9 there" in told
