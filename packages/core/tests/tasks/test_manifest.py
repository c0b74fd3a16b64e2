"""Runs train on what a manifest answers for, and on nothing else."""

import json
import shutil
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import RunFileError, Selection, TaskError
from reroll.checkpoints.state import Identity, data_identity, identity_problems
from reroll.cli.validate import file_problems
from reroll.config import load_run_file
from reroll.plan import size_problems
from reroll.planning.report import make_plan
from reroll.plugins import load_plugins
from reroll.tasks.catalog.manifest import digest_of, read_manifest
from reroll.tasks.config import open_task_set
from reroll.tasks.pointers import pointer_of

sys.path.insert(0, str(Path(__file__).parent))

from catalog_cases import prepared, rows_of, write_lines


@lru_cache
def plugins():
    return load_plugins()


def load(*data, verifiers='["exact_match"]'):
    overrides = ['model.path="builtin:tiny-math"', f"data.verifiers={verifiers}", *data]
    return load_run_file(None, overrides, plugins(), [size_problems])


def faults(*data, **more):
    with pytest.raises(RunFileError) as told:
        load(*data, **more)
    return {
        problem.key.removeprefix("--set "): f"{problem.message} | {problem.remedy}" for problem in told.value.problems
    }


def adopted(path):
    return load(f'data.manifest="{path}"')


def opened(path, split="train"):
    run = load()
    return open_task_set(run, Selection(name="manifest", options={"path": str(path), "split": split}), None, 0)


@pytest.fixture
def manifest(tmp_path):
    write_lines(tmp_path / "in" / "train.jsonl", rows_of("1 + 1", "2 + 2", "3 + 3"))
    write_lines(tmp_path / "in" / "test.jsonl", rows_of("4 + 4"))
    return prepared(tmp_path / "in", tmp_path / "out").manifest.path


def writable(path):
    path.chmod(0o644)
    return path


def test_tasks_are_known_by_data_set_split_row_and_prepared_identity(manifest):
    tasks = list(opened(manifest))
    assert [task.prompt[0]["content"] for task in tasks] == [f"Q: {n} + {n} {{kept}}" for n in (1, 2, 3)]
    assert [(task.source_dataset, task.source_row) for task in tasks] == [("questions/train", n) for n in range(3)]
    assert len({task.prepared_sample_id for task in tasks}) == 3
    assert tasks[0].targets == {"exact_match": "a0"}
    assert tasks[0].metadata["source"] == {"file": "train.jsonl", "row": 1}
    (held_out,) = opened(manifest, "test")
    assert held_out.source_dataset == "questions/test"
    again = opened(manifest).recover({**vars(tasks[1])})
    assert (pointer_of(again), again.targets) == (pointer_of(tasks[1]), tasks[1].targets)


def test_the_key_stands_for_the_task_set(manifest, monkeypatch):
    run = adopted(manifest)
    assert list(file_problems(run, thorough=True)) == []
    written = run.to_toml()["data"]
    assert written["task_set"] == {"name": "manifest", "path": str(manifest), "split": "train"}
    same = load(f'data.manifest="{manifest}"', f'data.task_set={{name="manifest", path="{manifest}", split="train"}}')
    assert same.to_toml() == run.to_toml()
    monkeypatch.chdir(manifest.parent)
    assert adopted("./manifest.json").to_toml() == run.to_toml()


def test_the_key_stands_beside_no_other_tasks(manifest):
    told = faults(f'data.manifest="{manifest}"', 'data.task_set="addition"')
    assert told == {"data.manifest": "is given beside data.task_set | leave one of them out"}
    other = f'data.task_set={{name="manifest", path="{manifest}", split="test"}}'
    assert "data.manifest" in faults(f'data.manifest="{manifest}"', other)
    told = faults(f'data.manifest="{manifest}"', 'data.sources=[{name="a", task_set="addition"}]')
    assert told["data.manifest"].startswith("is given beside data.sources | make it one of the sources")
    assert "data.manifest" in faults("data.manifest=3")


def test_a_verifier_that_is_not_listed_is_told_with_what_to_write(manifest):
    told = faults(f'data.manifest="{manifest}"', verifiers='[{name="regex", pattern="(x)"}]')
    assert told["data.manifest"] == (
        "the answers of 'questions' are judged by the verifier 'exact_match', which data.verifiers does not list | "
        'verifiers = ["regex", "exact_match"]'
    )
    sets = f'eval.sets=[{{name="a", task_set={{name="manifest", path="{manifest}", split="test"}}}}]'
    assert "eval.sets[0].task_set" in faults(sets, verifiers='[{name="regex", pattern="(x)"}]')


def test_a_split_that_is_not_there_is_told(manifest):
    told = faults(f'data.task_set={{name="manifest", path="{manifest}", split="dev"}}')
    assert "has no split 'dev'; it has train, test" in told["data.task_set"]


def test_a_plan_reads_no_data_and_tells_what_the_manifest_says(manifest):
    for name in ("train.jsonl", "test.jsonl"):
        (manifest.parent / name).unlink()
    found = make_plan(adopted(manifest))["data"]
    assert found["manifest"] == {
        "data_set": "questions",
        "split": "train",
        "rows": 3,
        "sha256": read_manifest(manifest).sha256,
    }
    manifest.unlink()
    assert "manifest" not in make_plan(adopted(manifest))["data"]


def longer(path):
    path.write_bytes(path.read_bytes() + b"\n")


def changed(path):
    path.write_bytes(path.read_bytes().replace(b"a1", b"a2"))


def shorter(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (longer, r"bytes expected, found"),
        (shorter, r"bytes expected, found"),
        (empty, r"bytes expected, found 0"),
        (changed, r"sha256 [0-9a-f]{64} expected, found [0-9a-f]{64}"),
        (Path.unlink, r"the file cannot be read: No such file"),
    ],
)
def test_a_file_that_is_not_what_it_was_is_refused_before_a_run(manifest, change, told, thorough):
    run = adopted(manifest)
    change(writable(manifest.parent / "train.jsonl"))
    (problem,) = file_problems(run, thorough=thorough)
    assert problem.key.removeprefix("--set ") == "data.manifest"
    with pytest.raises(TaskError, match=rf"{manifest.parent / 'train.jsonl'}: .*{told}.*prepare the data set again"):
        opened(manifest)
    assert str(manifest.parent / "train.jsonl") in problem.message
    assert len(opened(manifest, "test")) == 1


def edited(table):
    table["splits"]["train"]["rows"] = 2


def other_schema(table):
    table["schema"] = 2


def no_schema(table):
    del table["schema"]


def without_splits(table):
    del table["splits"]
    table["digest"] = digest_of({key: value for key, value in table.items() if key != "digest"})


def outside(table):
    table["splits"]["train"]["file"] = "../train.jsonl"
    table["digest"] = digest_of({key: value for key, value in table.items() if key != "digest"})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edited, "was edited after it was written: digest [0-9a-f]{64} expected, found [0-9a-f]{64}; undo that"),
        (other_schema, "schema 1 expected, found 2; prepare the data set again"),
        (no_schema, "has no schema number"),
        (without_splits, "manifest.splits: is required and not given; prepare"),
        (outside, "manifest.splits.train: '../train.jsonl': string should match"),
    ],
)
def test_a_manifest_that_is_not_as_it_was_written_is_refused(manifest, change, told):
    table = json.loads(manifest.read_text())
    change(table)
    writable(manifest).write_text(json.dumps(table))
    with pytest.raises(TaskError, match=told):
        opened(manifest)
    assert str(manifest) in faults(f'data.manifest="{manifest}"')["data.manifest"]


@settings(max_examples=40)
@given(st.data())
def test_a_torn_manifest_is_refused_with_its_name(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("torn")
    path = prepared(write_lines(folder / "in.jsonl", rows_of("a")), folder / "out").manifest.path
    content = path.read_bytes()
    writable(path).write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    with pytest.raises(TaskError, match=r"manifest.json: is no (JSON|manifest)"):
        read_manifest(path)


def test_a_manifest_that_is_missing_is_a_fault_of_the_files_and_not_of_the_plan(tmp_path):
    run = adopted(tmp_path / "manifest.json")
    (problem,) = file_problems(run, thorough=False)
    assert "does not exist" in problem.message and "writes it last" in problem.message


def identity(path):
    run = adopted(path)
    tasks = open_task_set(run, run.value("data.task_set"), None, 0)
    return Identity(run_id="a", seeds={}, data=data_identity(run.to_toml(), {"manifest": tasks}), model={})


def test_a_run_goes_on_under_the_same_manifest_only(manifest, tmp_path):
    first = identity(manifest)
    moved = shutil.copytree(manifest.parent, tmp_path / "moved") / "manifest.json"
    assert identity_problems(first, identity(moved)) == []
    write_lines(tmp_path / "in" / "train.jsonl", rows_of("1 + 1", "2 + 2", "3 + 3", "hard"))
    other = prepared(tmp_path / "in", tmp_path / "other").manifest.path
    problems = identity_problems(first, identity(other))
    assert any(problem.startswith("data.fingerprint: ") for problem in problems)
    assert opened(manifest).fingerprint() != opened(manifest, "test").fingerprint()
