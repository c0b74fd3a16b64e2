"""Input snapshots: which files a summary or a table was made of, and whether they are still what they were."""

import hashlib
import json
import subprocess
import sys

import duckdb
import pytest
from written_store import changes, take

from reroll_records.store.compacted import ForeignFileError, origin_of
from reroll_records.store.layout import scan
from reroll_records.store.snapshot import Input

MANIFEST = {
    "kind": "manifest",
    "schema": 1,
    "source": "train",
    "lineage": {"id": "0" * 16, "files": {}},
    "protocol": {"deterministic_inference": False},
    "protocol_digest": "p",
    "rollout_seed": 0,
    "started": 0.0,
}


def manifest(attempt):
    return MANIFEST | {"run": {"name": "r", "id": "r1", "attempt": attempt, "fresh": True}}


def make(root):
    folder = root / ("0" * 16) / "r-r1"
    folder.mkdir(parents=True)
    for attempt in "ab":
        (folder / f"manifest-{attempt}.json").write_text(json.dumps(manifest(attempt)))
        (folder / f"records-{attempt}.jsonl").write_bytes(b"{}\n" * 5 + attempt.encode())
    (folder / "manifest-bad.json").write_text("{}")
    (folder / "records-bad.jsonl").write_bytes(b"bad\n")
    (folder / "records-orphan.jsonl").write_bytes(b"orphan\n")
    return folder


def test_the_snapshot_holds_every_manifest_and_record_file_with_its_size_and_sha256(tmp_path):
    folder = make(tmp_path)
    inputs = take(scan(tmp_path))
    assert [found.path for found in inputs] == [
        f"{'0' * 16}/r-r1/{name}"
        for name in (
            *("manifest-a.json", "manifest-b.json", "manifest-bad.json"),
            *("records-a.jsonl", "records-b.jsonl", "records-bad.jsonl", "records-orphan.jsonl"),
        )
    ]
    for found in inputs:
        data = (tmp_path / found.path).read_bytes()
        assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert Input.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert changes(scan(tmp_path), inputs) == []
    assert folder.is_dir()


def test_a_file_that_grew_counts_as_it_was_and_one_that_is_shorter_other_or_gone_is_named(tmp_path):
    folder = make(tmp_path)
    inputs = take(scan(tmp_path))
    with (folder / "records-a.jsonl").open("ab") as file:
        file.write(b"more\n")
    assert changes(scan(tmp_path), inputs) == []
    (folder / "records-b.jsonl").write_bytes(b"{}\n" * 5)
    (folder / "records-orphan.jsonl").unlink()
    (folder / "manifest-a.json").write_text(json.dumps(manifest("a") | {"rollout_seed": 1}))
    told = changes(scan(tmp_path), inputs)
    assert len(told) == 3
    assert "manifest-a.json holds something else: its first" in told[0]
    assert told[1].endswith("records-b.jsonl has 15 bytes, and had 16")
    assert told[2].endswith("records-orphan.jsonl is gone")


def test_a_snapshot_of_a_lineage_tells_the_same_in_the_whole_store_and_the_other_way_round(tmp_path):
    folder = make(tmp_path)
    whole, part = take(scan(tmp_path)), take(scan(folder.parent))
    assert part[0].path == "r-r1/manifest-a.json"
    assert changes(scan(tmp_path), part) == changes(scan(folder.parent), whole) == changes(scan(folder), whole) == []
    (folder / "records-a.jsonl").unlink()
    assert changes(scan(tmp_path), part) == ["r-r1/records-a.jsonl is gone"]
    assert changes(scan(folder), whole) == [f"{'0' * 16}/r-r1/records-a.jsonl is gone"]


def test_a_snapshot_needs_the_standard_library_alone():
    code = (
        "import sys; sys.modules.update(duckdb=None, orjson=None, reroll=None, pydantic=None, typer=None, rich=None)\n"
        "import reroll_records.store.snapshot, reroll_records.store.appending, reroll_records.store.liveness"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("data", [b"PAR1", b""])
def test_a_parquet_file_that_was_not_compacted_stands_for_no_lines(tmp_path, data):
    folder = make(tmp_path)
    before = take(scan(tmp_path))
    (folder / "records-a.jsonl").unlink()
    path = folder / "records-a.parquet"
    path.write_bytes(data)
    for _ in range(2):
        assert changes(scan(tmp_path), before) == [f"{'0' * 16}/r-r1/records-a.jsonl is gone"]
        with pytest.raises(ForeignFileError, match=r"records-a.parquet was not written by `reroll records compact`"):
            origin_of(path)
        duckdb.execute(f"COPY (SELECT 1 AS one) TO '{path}' (FORMAT parquet)")
