"""`reroll generate index|merge|export|clean` as commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from pyarrow import parquet
from typer.testing import CliRunner

from reroll.api import RerollError
from reroll.cli import generate_results
from reroll.launch.attempts import run_lock

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import Results, entry_of, protocol_of, whole_run

APP = typer.Typer()
for name in ("index", "merge", "export", "clean"):
    APP.command(name)(getattr(generate_results, name))


def run(*arguments):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


@pytest.fixture
def shards(tmp_path):
    """A results folder of two shards, the second of which lacks its last attempts."""
    folder = tmp_path / "results"
    for number in (1, 2):
        protocol = protocol_of(shard=(number, 2))
        entries = list(whole_run(protocol))
        Results(folder / f"shard_{number}_of_2", protocol).add_all(entries[:-1] if number == 2 else entries)
    return folder


def test_a_merge_tells_what_is_missing_and_writes_four_files(tmp_path, shards):
    output = tmp_path / "merged" / "index.parquet"
    done = run("merge", shards, shards / "shard_1_of_2", "--output", output)
    assert done.exit_code == 0
    assert f"warning: {shards / 'shard_2_of_2'}: 3 attempts of 1 task not finished: task 5" in done.stderr
    assert "9 results met again" in done.stderr
    assert "tasks by pass rate" in done.stdout and "6 passed, 9 failed" in done.stdout
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "index.parquet", "index.summary.csv", "index.summary.json", "index.svg",
    ]  # fmt: skip
    assert json.loads((output.parent / "index.summary.json").read_bytes())["missing"] == 3


def test_what_must_be_complete_is_not_written_before_it_is(tmp_path, shards):
    output = tmp_path / "index.parquet"
    done = run("merge", shards, "--output", output, "--require-complete")
    assert (done.exit_code, output.exists()) == (1, False)
    assert "not complete" in done.stderr and "3 attempts" in done.stderr
    protocol = protocol_of(shard=(2, 2))
    results = Results(shards / "more", protocol).add_all(whole_run(protocol))
    assert run("merge", shards, results.folder, "--output", output, "--require-complete").exit_code == 0


def test_a_band_is_chosen_again_without_running(tmp_path, shards):
    for band, count in (("(0, 1)", 2), ("[0, 0.4]", 3), ("[1, 1]", 1)):
        output = tmp_path / "index.parquet"
        done = run("index", shards, "--output", output, "--band", band)
        assert f"{count} task{'s' if count > 1 else ''} with a pass rate in {band}" in done.stdout
        assert parquet.read_table(output).num_rows == count


def test_conversations_are_exported(tmp_path, shards):
    output = tmp_path / "corpus.jsonl"
    done = run("export", shards, "--output", output, "--outcome", "judged", "--deduplicate", "--most-per-task", 2)
    assert (done.exit_code, done.stdout) == (0, f"{output}: 10 conversations of 5 tasks\n")
    assert len(output.read_text().splitlines()) == 10


def test_a_clean_up_says_what_it_frees(shards):
    folder = shards / "shard_1_of_2"
    (folder / "logs").mkdir()
    (folder / "logs/a.log").write_text("12345")
    would = run("clean", folder, "--dry-run", "--drop-traces", "failed").stdout
    assert would.startswith(f"{folder}: would free ") and "5 of logs" in would
    assert run("clean", folder, "--drop-traces", "failed").stdout == would.replace("would free", "freed")
    assert not (folder / "logs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["merge", "DIR", "--output", "i.csv"], "an index is a .parquet file"),
        (["index", "DIR", "--output", "i.parquet", "--band", "0-1"], "no interval"),
        (["index", "DIR", "--output", "i.parquet", "--band", "[0.5, 1.5]"], "pass rates from 0 to 1"),
        (["export", "DIR", "--output", "c.txt"], "neither .jsonl nor .parquet"),
        (["export", "DIR", "--output", "c.jsonl", "--most-per-task", "0"], "most-per-task"),
        (["clean", "DIR", "--drop-traces", "passed"], "drop-traces"),
        (["merge", "--output", "i.parquet"], "Missing argument"),
    ],
)
def test_misuse_ends_with_exit_code_2_before_anything_is_read(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_faults_of_results_reach_the_user_as_messages(tmp_path, shards):
    other = Results(tmp_path / "other", protocol_of(seed=4)).folder
    output = tmp_path / "i.parquet"
    for folders, message in (([shards, other], "seed: 0 and 4"), ([tmp_path / "logs"], "is no folder")):
        found = run("merge", *folders, "--output", output).exception
        assert isinstance(found, RerollError) and message in str(found)
    folder = shards / "shard_1_of_2"
    with run_lock(folder, print):
        found = run("clean", folder).exception
        assert isinstance(found, RerollError) and "another run is using" in str(found)
    assert not output.exists()


def test_a_result_that_is_an_error_is_told_as_unfinished(tmp_path):
    protocol = protocol_of(tasks=2, n_trials=1)
    folder = (
        Results(tmp_path / "one", protocol)
        .add_all([entry_of(protocol, 0, 0, "error"), entry_of(protocol, 1, 0)])
        .folder
    )
    done = run("merge", folder, "--output", tmp_path / "i.parquet")
    assert "1 attempt of 1 task not finished: main-0 (trial 0)" in done.stderr
    assert "1 passed, 0 failed, 1 errors" in done.stdout


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys; from reroll.cli import generate_results\n"
        "print(sorted({'pyarrow', 'rich', 'torch', 'numpy', 'reroll.generation'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['rich']")
