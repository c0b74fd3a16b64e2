"""One start of a generation: what it finds in its folder, and what it leaves."""

import asyncio
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parent))

from measuring_cases import addition, run_of

from reroll.api import RunFileError
from reroll.generation.merging import merge, results_folders
from reroll.generation.program import run_generation
from reroll.generation.protocol import FILE, ResultsError


def of(folder, *overrides):
    return run_of(addition(4), "run.name='few'", f"generation.results_dir={str(folder)!r}", *overrides)


def test_a_shard_without_tasks_is_whole_from_the_beginning(tmp_path, capsys):
    assert asyncio.run(run_generation(of(tmp_path), (5, 6))) == 0
    folder = tmp_path / "shard_5_of_6"
    assert parquet.read_table(folder / "index.parquet").num_rows == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("generation done: ")
    merged = merge(results_folders([folder]), pytest.fail)
    assert not merged.gaps


def test_what_an_earlier_start_left_half_written_keeps_no_other_away(tmp_path):
    folder = tmp_path / "shard_5_of_6"
    folder.mkdir()
    (folder / f"{FILE}.partial").write_text("{")
    assert asyncio.run(run_generation(of(tmp_path), (5, 6))) == 0


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "shard_5_of_6"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ResultsError, match="holds something else"):
        asyncio.run(run_generation(of(tmp_path), (5, 6)))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("reader", ["data.task_set", "generation.instances"])
def test_an_index_is_not_written_over_what_the_run_reads(tmp_path, reader):
    path = tmp_path / "index.parquet"
    tasks = {"name": "index", "path": str(path)} if reader == "data.task_set" else addition(4)
    instances = [f"generation.instances={str(path)!r}"] * (reader == "generation.instances")
    with pytest.raises(RunFileError, match=rf"is what {reader} reads, and would be overwritten"):
        run_of(tasks, f"generation.output_index={str(path)!r}", *instances)


def test_an_index_that_is_a_folder_is_told_before_anything_is_run(tmp_path):
    from reroll.cli.generate import NOT_ASKED
    from reroll.cli.validate import file_problems

    (tmp_path / "index.parquet").mkdir()
    run = of(tmp_path / "results", f"generation.output_index={str(tmp_path / 'index.parquet')!r}")
    (problem,) = file_problems(run, thorough=False, without=NOT_ASKED)
    assert (problem.key, problem.message.endswith("is a folder")) == ("generation.output_index", True)


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_a_reward_that_no_attempt_can_be_compared_with_is_refused(tmp_path, value):
    with pytest.raises(RunFileError, match=r"generation\.pass_reward"):
        of(tmp_path, f"generation.pass_reward={value}")
