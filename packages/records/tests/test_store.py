import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_store import LINEAGE, group, manifest, write

from reroll_records.store.layout import StoreError, scan, sha256_prefix


def test_a_store_a_lineage_and_a_run_can_each_be_given(tmp_path):
    first = write(tmp_path, manifest("a"), [group("1")])
    write(tmp_path, manifest("b", run="second"), [])
    write(tmp_path, manifest("c", lineage="1" * 16), [])
    assert [attempt.id for attempt in scan(tmp_path).attempts] == ["a", "b", "c"]
    assert [attempt.id for attempt in scan(tmp_path / LINEAGE).attempts] == ["a", "b"]
    (attempt,) = scan(first.parent).attempts
    assert (attempt.run_name, attempt.run_id, attempt.lineage) == ("first", "first-id", LINEAGE)
    assert attempt.records_path == first
    assert scan(tmp_path).name(first) == f"{LINEAGE}/first-first-id/records-a.jsonl"


def test_a_resumed_run_is_another_attempt_of_the_same_run(tmp_path):
    write(tmp_path, manifest("a"), [])
    write(tmp_path, manifest("b"), [])
    found = [(attempt.run_id, attempt.id) for attempt in scan(tmp_path).attempts]
    assert found == [("first-id", "a"), ("first-id", "b")]


def test_identity_is_that_of_the_manifest_and_not_of_folder_names(tmp_path):
    path = write(tmp_path / "made", manifest("a"), [group("1")])
    moved = tmp_path / "store" / "anything [*]" / "at all"
    moved.parent.mkdir(parents=True)
    shutil.move(path.parent, moved)
    (attempt,) = scan(tmp_path / "store").attempts
    assert (attempt.run_id, attempt.lineage, attempt.folder) == ("first-id", LINEAGE, moved)


def test_an_attempt_that_lies_in_two_folders_counts_once(tmp_path):
    path = write(tmp_path, manifest("a"), [group("1")])
    shutil.copytree(path.parent, path.parent.with_name("z copy"))
    store = scan(tmp_path)
    assert [attempt.folder for attempt in store.attempts] == [path.parent]
    (warning,) = store.warnings
    assert "z copy/manifest-a.json: attempt a is in" in warning


def test_a_renamed_copy_of_an_attempt_counts_nowhere(tmp_path):
    path = write(tmp_path, manifest("a"), [group("1")])
    shutil.copy(path.with_name("manifest-a.json"), path.with_name("manifest-b.json"))
    shutil.copy(path, path.with_name("records-b.jsonl"))
    store = scan(tmp_path)
    assert [attempt.id for attempt in store.attempts] == ["a"]
    assert any("is that of attempt a, and the file is named for b" in warning for warning in store.warnings)


def test_a_record_file_without_a_manifest_is_warned_about_and_counted_nowhere(tmp_path):
    path = write(tmp_path, manifest("a"), [group("1")])
    path.with_name("manifest-a.json").unlink()
    path.with_name("records-b.parquet").write_bytes(b"PAR1")
    store = scan(tmp_path)
    assert store.attempts == []
    assert store.orphans == [path, path.with_name("records-b.parquet")]
    assert [warning.endswith("has no manifest and is counted nowhere") for warning in store.warnings] == [True, True]


def test_where_there_is_no_store_its_absence_is_told(tmp_path):
    with pytest.raises(StoreError, match="is no folder: give the root of a store"):
        scan(tmp_path / "missing")
    with pytest.raises(StoreError, match="holds no inference records"):
        scan(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def _usable_or_warned(folder: Path):
    store = scan(folder)
    assert len(store.attempts) + len(store.warnings) == 1
    for attempt in store.attempts:
        assert attempt.started + attempt.rollout_seed is not None
        assert attempt.deterministic in (True, False)
        assert [attempt.run_id, attempt.run_name, attempt.lineage, attempt.source, attempt.protocol_digest]
    return store


@given(st.data(), json_values)
def test_any_value_in_any_field_of_a_manifest_gives_a_warning_or_an_attempt(tmp_path_factory, data, value):
    folder = tmp_path_factory.getbasetemp() / "odd"
    found = manifest("a")
    holder = found if data.draw(st.booleans()) else found[data.draw(st.sampled_from(["run", "lineage", "protocol"]))]
    name = data.draw(st.sampled_from(sorted(holder)))
    if data.draw(st.booleans()):
        holder[name] = value
    else:
        del holder[name]
    folder.mkdir(exist_ok=True)
    (folder / "manifest-a.json").write_text(json.dumps(found))
    _usable_or_warned(folder)


@given(st.binary(max_size=50) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_for_a_manifest_give_a_warning(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    (folder / "manifest-a.json").write_bytes(content)
    assert _usable_or_warned(folder).attempts == []


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"schema": 2}', b"1" * 5000, '{"schema": "é"}'.encode("latin-1"), b""]
)
def test_a_manifest_that_cannot_be_read_costs_its_attempt_alone_and_is_told(tmp_path, content):
    write(tmp_path, manifest("b"), [])
    path = write(tmp_path, manifest("a"), [group("1")])
    path.with_name("manifest-a.json").write_bytes(content)
    store = scan(tmp_path)
    assert [attempt.id for attempt in store.attempts] == ["b"]
    assert store.orphans == []
    (warning,) = store.warnings
    assert "manifest-a.json: the manifest" in warning and "counted nowhere" in warning


def test_folders_and_files_of_others_are_left_alone(tmp_path):
    path = write(tmp_path, manifest("a"), [group("1")])
    (path.parent / "notes.txt").write_text("x")
    (path.parent / "manifest-of-a-folder.json").mkdir()
    (tmp_path / "selection").mkdir()
    (tmp_path / "selection" / "table.json").write_text("{}")
    store = scan(tmp_path)
    assert ([attempt.id for attempt in store.attempts], store.warnings) == (["a"], [])


def test_what_the_writer_says_at_its_end_is_there_or_none(tmp_path):
    write(tmp_path, manifest("a"), [])
    (attempt,) = scan(tmp_path).attempts
    assert attempt.closed is None
    attempt.closed_path.write_text('{"written": 3}')
    assert scan(tmp_path).attempts[0].closed == {"written": 3}
    attempt.closed_path.write_text('{"written"')
    assert scan(tmp_path).attempts[0].closed is None


@given(st.binary(max_size=300), st.integers(0, 400))
def test_the_digest_of_a_growing_file_is_that_of_what_it_held(tmp_path_factory, content, size):
    path = tmp_path_factory.getbasetemp() / "growing"
    path.write_bytes(content)
    assert sha256_prefix(path, size) == hashlib.sha256(content[:size]).hexdigest()
