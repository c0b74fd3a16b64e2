"""The summary, the index and the picture of a results folder."""

import csv
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from fractions import Fraction
from io import StringIO
from pathlib import Path

import pytest
from pyarrow import parquet
from rich.console import Console

from reroll.api import RerollError
from reroll.generation.bands import Band
from reroll.generation.index_file import require_parquet, write_index
from reroll.generation.outputs import COLUMNS, Outputs, conclude, write_table
from reroll.generation.protocol import ResultsError
from reroll.generation.summary import Summary
from reroll.generation.summary_view import show
from reroll.generation.tally import Tally

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import entry_of, protocol_of, whole_run


def concluded(folder, protocol, entries, band="(0, 1)"):
    outputs = Outputs.of_folder(folder, folder / "index.parquet")
    tally = Tally(protocol.positions(), protocol.n_trials).add_all(entries)
    return outputs, conclude(tally, protocol, Band.parse(band), outputs, [folder])


def test_the_files_say_what_the_attempts_came_to(tmp_path):
    protocol = protocol_of()
    outputs, summary = concluded(tmp_path, protocol, whole_run(protocol))
    with outputs.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["pass_rate"] for row in rows] == ["0.0", repr(1 / 3), repr(2 / 3), "1.0", "0.0", ""]
    assert rows[1] == {
        "source_dataset": "set-main", "source_row": "1", "prepared_sample_id": "main-1", "n_pass": "1", "n_fail": "2",
        "n_error": "0", "pass_rate": repr(1 / 3), "reward": repr(1 / 3), "tokens": "6", "truncated": "0", "skipped": "",
    }  # fmt: skip
    assert rows[5]["skipped"] == "why skipped"
    assert (summary.passed, summary.failed, summary.errors, summary.skipped, summary.missing) == (6, 9, 0, 1, 0)
    assert summary.mean_pass_rate == Fraction(2, 5)
    found = json.loads(outputs.summary.read_bytes())
    assert found["pass_at_k"] == [
        {"k": 1, "mean": 0.4, "tasks": 5},
        {"k": 2, "mean": pytest.approx((2 / 3 + 1 + 1) / 5), "tasks": 5},
        {"k": 3, "mean": 0.6, "tasks": 5},
    ]
    assert [(row["exact"], row["tasks"]) for row in found["pass_rates"]] == [("0", 2), ("1/3", 1), ("2/3", 1), ("1", 1)]
    assert (found["selected"], found["band"], found["index"]) == (2, "(0, 1)", str(outputs.index))


def test_the_index_points_at_the_tasks_of_the_band(tmp_path):
    protocol = protocol_of()
    outputs, _ = concluded(tmp_path, protocol, whole_run(protocol), "(0, 1]")
    table = parquet.read_table(outputs.index)
    assert [str(field.type) for field in table.schema] == [
        "string", "int64", "string", "double", "int64", "int64", "int64", "double", "string", "string",
    ]  # fmt: skip
    rows = table.to_pylist()
    assert [(row["source_dataset"], row["source_row"], row["prepared_sample_id"]) for row in rows] == [
        ("set-main", 1, "main-1"),
        ("set-main", 2, "main-2"),
        ("set-more", 0, "more-0"),
    ]
    assert json.loads(rows[0]["task_set"]) == {"name": "addition", "split": "train"}
    assert json.loads(rows[2]["task_set"])["path"] == "/d/t.jsonl"
    assert (rows[0]["pass_rate"], rows[0]["tokens"]) == (1 / 3, 2.0)


def test_equal_outcomes_give_equal_files(tmp_path):
    protocol = protocol_of()
    entries = list(whole_run(protocol))
    first, _ = concluded(tmp_path / "a", protocol, entries)
    second, _ = concluded(tmp_path / "b", protocol, entries[::-1])
    for name in ("index", "table", "picture"):
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes()


def test_a_band_with_nothing_in_it_gives_an_index_without_rows(tmp_path):
    protocol = protocol_of()
    outputs, summary = concluded(tmp_path, protocol, whole_run(protocol), "[0.5, 0.5]")
    assert summary.selected == parquet.read_table(outputs.index).num_rows == 0


def test_nothing_at_all_is_a_summary_too(tmp_path):
    protocol = protocol_of(n_trials=1)
    outputs, summary = concluded(tmp_path, protocol, [entry_of(protocol, 0, 0, "error")])
    assert (summary.mean_pass_rate, summary.missing, summary.errors) == (None, 5, 1)
    assert json.loads(outputs.summary.read_bytes())["pass_at_k"] == [{"k": 1, "mean": None, "tasks": 0}]
    assert "no task has as many judged attempts" in shown(summary)


def test_a_picture_is_drawn_without_anything_from_elsewhere(tmp_path):
    protocol = protocol_of(name="<b>&[red] \x00run")
    outputs, _ = concluded(tmp_path, protocol, whole_run(protocol))
    text = outputs.picture.read_text()
    assert text.count("http") == 1
    assert "url(" not in text.replace("url(#", "")
    drawn = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert "<b>&[red]" in drawn and "pass@3" in drawn and "6 passed, 9 failed" in drawn


def shown(summary):
    console = Console(file=StringIO(), width=100, force_terminal=False)
    show(summary, console)
    return console.file.getvalue()


def a_summary(judged, n_trials):
    passed = sum(c * tasks for (_, c), tasks in judged.items())
    tasks = sum(judged.values())
    total = sum(n * tasks for (n, _), tasks in judged.items())
    return Summary(
        "run", n_trials, tasks, tasks * n_trials, passed, total - passed, 0, 0, 0, judged, 0, 0, Band.parse("(0, 1)"),
        0, Path("i.parquet"), [],
    )  # fmt: skip


def test_no_task_and_no_bar_is_lost_with_many_trials():
    judged = {(64, c): 1000 if c == 64 else 1 for c in range(65)}
    shown_bars = shown(a_summary(judged, 64)).split("tasks by pass rate")[1]
    bars = [line for line in shown_bars.splitlines() if line.split()[-1:] and line.split()[-1].isdigit()]
    counts = [int(line.split()[-1]) for line in bars]
    assert (sum(counts), counts[0], counts[-1], len(counts)) == (1064, 1, 1000, 12)
    assert all(set(line) & set("▏▎▍▌▋▊▉█") for line in bars)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "other"}, "source 'other'.*names only main, more"),
        ({"source_row": 1 << 70}, "hold what no index can"),
    ],
)
def test_results_that_fit_no_index_are_refused(tmp_path, change, message):
    protocol = protocol_of(n_trials=1)
    tally = Tally(protocol.positions(), 1)
    tally.add(replace(entry_of(protocol, 0, 0), **change))
    with pytest.raises(ResultsError, match=message):
        write_index(tmp_path / "i.parquet", tally.tasks(), Band.parse("[0, 1]"), protocol)
    assert list(tmp_path.iterdir()) == []


def test_a_table_holds_any_id(tmp_path):
    protocol = protocol_of(n_trials=1)
    ids = ['a,"b"\n', "\ud800", "=1", "ü"]
    entries = [replace(entry_of(protocol, position, 0), prepared_sample_id=name) for position, name in enumerate(ids)]
    write_table(tmp_path / "s.csv", Tally(protocol.positions(), 1).add_all(entries).tasks())
    with (tmp_path / "s.csv").open(newline="", encoding="utf-8") as file:
        assert [row["prepared_sample_id"] for row in csv.DictReader(file)] == ['a,"b"\n', "\\ud800", "=1", "ü"]


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RerollError, match=r"--output i.parquet needs pyarrow: pip install 'reroll\[parquet\]'"):
        require_parquet("--output i.parquet")
