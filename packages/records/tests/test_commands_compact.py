"""`reroll records compact`: the table, the JSON, and what ends it."""

import json

import typer
from typer.testing import CliRunner

from reroll.api import RerollError
from reroll_records.compaction.command import compact

MANIFEST = {
    "kind": "manifest",
    "schema": 1,
    "source": "train",
    "lineage": {"id": "l", "files": {}},
    "protocol": {"deterministic_inference": False},
    "protocol_digest": "p",
    "rollout_seed": 0,
    "started": 0.0,
}
ROW = (
    json.dumps(
        {
            "kind": "disposition",
            "schema": 1,
            "observation_id": "o",
            "disposition": "expired",
            "staleness": 1,
            "time": 1,
        }
    ).encode()
    + b"\n"
)


def invoke(*arguments):
    app = typer.Typer()
    app.command()(compact)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def make(root, attempt, data, closed=True):
    folder = root / "l" / "r[bold]-1"
    folder.mkdir(parents=True, exist_ok=True)
    run = {"name": "r", "id": "r1", "attempt": attempt, "fresh": True}
    (folder / f"manifest-{attempt}.json").write_text(json.dumps(MANIFEST | {"run": run}))
    (folder / f"records-{attempt}.jsonl").write_bytes(data)
    if closed:
        (folder / f"closed-{attempt}.json").write_text("{}")
    return folder


def test_a_table_says_sizes_before_and_after_and_what_was_left_out_and_why(tmp_path):
    make(tmp_path, "a", ROW * 2000)
    make(tmp_path, "b", ROW + b"{}\n")
    folder = make(tmp_path, "c", ROW, closed=False)
    (folder / "records-d.jsonl").write_bytes(ROW)
    found = invoke(tmp_path, "--delete-originals")
    assert found.exit_code == 0
    rows = {line.split()[0].rpartition("/")[2]: line.split()[1:] for line in found.output.splitlines()[1:4]}
    after = (folder / "records-a.parquet").stat().st_size
    sizes = ["226.0", "kB", f"{after / 1000:.1f}", "kB", f"{after / (len(ROW) * 2000):.1%}"]
    assert rows["records-a.jsonl"] == ["compacted", "2,000", *sizes, "deleted"]
    assert rows["records-b.jsonl"][0:2] == ["compacted", "1"] and rows["records-b.jsonl"][-1] == "kept"
    assert rows["records-c.jsonl"] == ["left", "113", "B", "kept"]
    assert "2 of 3 in Parquet: 226.1 kB →" in found.output
    prefix = "l/r[bold]-1/records"
    assert f"{prefix}-b.jsonl: 1 line is no row and is not in Parquet\n" in found.output
    assert f"{prefix}-b.jsonl is kept: 1 line is no row and is not in Parquet\n" in found.output
    assert f"{prefix}-c.jsonl left: its writer has not closed it" in found.output
    assert f"{prefix}-d.jsonl has no manifest and is counted nowhere" in found.output


def test_the_same_again_changes_nothing_and_says_so_in_json(tmp_path):
    folder = make(tmp_path, "a", ROW)
    first = json.loads(invoke(tmp_path, "--json").output)
    written = (folder / "records-a.parquet").stat().st_mtime_ns
    second = json.loads(invoke(tmp_path, "--json").output)
    assert first["attempts"][0] == second["attempts"][0] | {"status": "compacted"}
    assert second == {
        "attempts": [
            {
                "name": "l/r[bold]-1/records-a.jsonl",
                "status": "present",
                "reason": None,
                "before": len(ROW),
                "after": (folder / "records-a.parquet").stat().st_size,
                "rows": 1,
                "not_compacted": 0,
                "lines": "kept",
                "kept_because": None,
            }
        ],
        "warnings": [],
    }
    assert (folder / "records-a.parquet").stat().st_mtime_ns == written


def test_idle_seconds_decide_of_an_attempt_that_was_not_closed(tmp_path):
    make(tmp_path, "a", ROW, closed=False)
    assert json.loads(invoke(tmp_path, "--json").output)["attempts"][0]["status"] == "left"
    assert json.loads(invoke(tmp_path, "--json", "--idle", 0).output)["attempts"][0]["status"] == "compacted"


def test_the_second_option_alone_and_a_folder_without_a_store_are_refused(tmp_path):
    make(tmp_path, "a", ROW)
    found = invoke(tmp_path, "--delete-unreadable")
    assert isinstance(found.exception, RerollError)
    assert "give --delete-originals too" in str(found.exception)
    found = invoke(tmp_path / "nowhere")
    assert isinstance(found.exception, RerollError)
    assert "is no folder: give the root of a store" in str(found.exception)


def test_an_attempt_that_fails_ends_the_command_with_an_error(tmp_path):
    folder = make(tmp_path, "a", ROW)
    (folder / "records-a.parquet").mkdir()  # nothing can get that name
    found = invoke(tmp_path)
    assert found.exit_code == 1
    assert "records-a.jsonl failed: " in found.output
