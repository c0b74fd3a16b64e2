"""Which file is read, and what a snapshot of the store says."""

from __future__ import annotations

import hashlib
import json

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_records.store.layout import scan
from reroll_records.store.sources import compacted_source, complete_size, hashed, snapshot

MANIFEST = {
    "kind": "manifest",
    "schema": 1,
    "source": "train",
    "run": {"name": "r", "id": "r1", "attempt": "a", "fresh": True},
    "lineage": {"id": "l", "files": {}},
    "protocol": {"deterministic_inference": False},
    "protocol_digest": "p",
    "rollout_seed": 0,
    "started": 1.0,
}
LINES = b'{"schema": 1}\nhalf'


def attempt(root, lines=LINES):
    folder = root / "l" / "r-r1"
    folder.mkdir(parents=True)
    (folder / "manifest-a.json").write_text(json.dumps(MANIFEST))
    if lines is not None:
        (folder / "records-a.jsonl").write_bytes(lines)
    return folder


def compact(folder, lines=LINES, footer=None):
    origin = {
        "name": "records-a.jsonl",
        "size": len(lines),
        "sha256": hashlib.sha256(lines).hexdigest(),
        "incomplete": True,
        "unreadable": 1,
        "rows": 0,
        "note": "é" * 300,  # a length of two bytes
    }
    text = json.dumps(origin if footer is None else footer).replace("'", "''")
    options = f"FORMAT parquet, KV_METADATA {{reroll_source: '{text}'}}"
    duckdb.execute(f"COPY (SELECT 1 AS x) TO '{folder / 'records-a.parquet'}' ({options})")
    return origin


def test_snapshot_holds_every_manifest_and_record_file_with_its_size_and_sha256(tmp_path):
    folder = attempt(tmp_path)
    (folder / "records-orphan.jsonl").write_bytes(b"x\n")
    (folder / "manifest-broken.json").write_bytes(b"{")
    found = hashed(snapshot(scan(tmp_path)).inputs, 2)
    assert [item["path"] for item in found] == [
        f"l/r-r1/{name}"
        for name in ("manifest-a.json", "manifest-broken.json", "records-a.jsonl", "records-orphan.jsonl")
    ]
    for item in found:
        content = (tmp_path / item["path"]).read_bytes()
        assert item["size"] == len(content)
        assert item["sha256"] == hashlib.sha256(content).hexdigest()


def test_what_is_appended_after_the_snapshot_is_not_in_it(tmp_path):
    folder = attempt(tmp_path)
    taken = snapshot(scan(tmp_path))
    with (folder / "records-a.jsonl").open("ab") as file:
        file.write(b" more\n")
    assert hashed(taken.inputs, 1)[1]["sha256"] == hashlib.sha256(LINES).hexdigest()
    assert taken.sources[0].complete == 14


def test_compacted_attempt_stands_in_the_snapshot_as_its_json_lines_were(tmp_path):
    folder = attempt(tmp_path)
    before = snapshot(scan(tmp_path))
    inputs = hashed(before.inputs, 1)
    compact(folder)
    (folder / "records-a.jsonl").unlink()
    after = snapshot(scan(tmp_path))
    assert hashed(after.inputs, 1) == inputs
    assert after.warnings == before.warnings
    assert after.sources[0].compacted
    assert after.sources[0].unreadable == 1


def test_json_lines_are_read_while_they_are_whole_and_else_the_compacted_rows(tmp_path):
    folder = attempt(tmp_path)
    compact(folder)
    assert not snapshot(scan(tmp_path)).sources[0].compacted
    (folder / "records-a.jsonl").write_bytes(LINES[:-1])
    taken = snapshot(scan(tmp_path))
    assert taken.sources[0].compacted
    assert taken.inputs[1].size == len(LINES)


@pytest.mark.parametrize("footer", [{"name": "x"}, [], 3])
def test_parquet_that_does_not_say_what_it_was_made_from_is_warned_about(tmp_path, footer):
    folder = attempt(tmp_path, lines=None)
    compact(folder, footer=footer)
    taken = snapshot(scan(tmp_path))
    assert taken.sources == []
    assert "does not say what it was compacted from" in taken.warnings[0]


def test_files_that_are_no_parquet_say_nothing(tmp_path):
    for number, content in enumerate(
        [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"reroll_source\x18\xff" + b"\x0f\0\0\0PAR1"]
    ):
        path = tmp_path / str(number)
        path.write_bytes(content)
        assert compacted_source(path) is None


def test_losses_that_a_writer_told_are_warned_about(tmp_path):
    folder = attempt(tmp_path)
    (folder / "closed-a.json").write_text(json.dumps({"written": 1, "dropped": 2, "failed": 3}))
    warnings = snapshot(scan(tmp_path)).warnings
    assert "l/r-r1/closed-a.json: 2 rows that the writer dropped because its queue was full are missing" in warnings
    assert "l/r-r1/closed-a.json: 3 rows that the writer could not write are missing" in warnings


@given(st.lists(st.sampled_from([b"\n", b"a", b"b" * 70_000]), max_size=5).map(b"".join), st.integers(0, 200_000))
def test_complete_lines_end_with_the_last_newline(tmp_path_factory, content, size):
    path = tmp_path_factory.mktemp("f") / "f"
    path.write_bytes(content)
    size = min(size, len(content))
    assert complete_size(path, size) == content[:size].rfind(b"\n") + 1
