"""`reroll records check`: what of a table's or a summary's inputs is gone or differs."""

import json

import pytest
import typer
from typer.testing import CliRunner
from written_store import LINEAGE, compact, group, manifest, write

from reroll.api import RerollError
from reroll_records.checking.command import check
from reroll_records.selection.selecting import Rule, select, write_table
from reroll_records.summary.summarize import summarize

FOLDER = f"{LINEAGE}/first-first-id"
ROWS = [group(str(number), "prompt", [0.0] * 4) for number in range(8)]


def invoke(*arguments):
    app = typer.Typer()
    app.command()(check)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(params=["table", "summary"])
def made(request, tmp_path):
    """A store, its record file, and what was made of it."""
    path = write(tmp_path / "store", manifest("a"), ROWS)
    if request.param == "table":
        write_table(tmp_path / "table.json", select(tmp_path / "store", Rule(("all_zero",))))
        return tmp_path / "store", path, tmp_path / "table.json"
    summarize(tmp_path / "store", tmp_path / "out")
    return tmp_path / "store", path, tmp_path / "out" / "summary.json"


def test_inputs_that_are_as_they_were_or_grew_or_were_compacted_and_deleted_end_with_0(made):
    store, path, file = made
    found = invoke(file, store)
    assert (found.exit_code, "2 of 2 inputs are as they were" in found.output) == (0, True)
    compact(path)
    assert not path.exists()
    found = invoke(file, store, "--json")
    assert (found.exit_code, json.loads(found.output)) == (0, {"inputs": 2, "changed": []})


def test_inputs_that_differ_or_are_gone_are_named_and_end_with_1(made):
    store, path, file = made
    path.write_bytes(path.read_bytes().replace(b"sums", b"SUMS"))
    found = invoke(file, store)
    assert found.exit_code == 1
    assert f"{FOLDER}/records-a.jsonl holds something else" in found.output
    assert "1 of 2 inputs are as they were" in found.output
    path.unlink()
    found = invoke(file, store, "--json")
    assert found.exit_code == 1
    assert json.loads(found.output)["changed"] == [{"path": f"{FOLDER}/records-a.jsonl", "reason": "is gone"}]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"inputs": [{"path": 1}]}', '{"inputs": [3]}'])
def test_what_is_no_table_and_no_summary_is_refused_with_the_remedy(tmp_path, content):
    write(tmp_path / "store", manifest("a"), ROWS)
    (tmp_path / "file").write_text(content)
    for name in ("file", "nowhere"):
        assert isinstance(invoke(tmp_path / name, tmp_path / "store").exception, RerollError)
    assert "give a table of `reroll records select`" in str(invoke(tmp_path / "file", tmp_path / "store").exception)
