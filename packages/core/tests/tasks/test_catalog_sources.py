"""Sources of the catalog: files of several kinds, folders by split, and the hub."""

import gzip
import hashlib
import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from reroll.api import RerollError
from reroll.tasks.catalog import hub
from reroll.tasks.catalog.prepare import prepare
from reroll.tasks.catalog.rows import How
from reroll.tasks.catalog.sources import BATCH, Source, SourceError, file_source

sys.path.insert(0, str(Path(__file__).parent))

from catalog_cases import PACKAGE, Questions, asked, prepared, read, rows_of, write_lines

ROWS = rows_of("one", "two {x}", "three ü")


def values(part):
    return [raw.value for raw in part.rows()]


def as_jsonl(path, rows):
    write_lines(path.with_suffix(".jsonl"), rows)


def as_list(path, rows):
    path.with_suffix(".json").write_text(json.dumps(rows, indent=2))


def as_lines_named_json(path, rows):
    write_lines(path.with_suffix(".json"), rows)


def as_parquet(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))


@pytest.mark.parametrize("written_as", [as_jsonl, as_list, as_lines_named_json, as_parquet])
def test_every_kind_of_file_gives_the_same_rows_and_its_digest(tmp_path, written_as):
    written_as(tmp_path / "rows", ROWS)
    (path,) = tmp_path.iterdir()
    (part,) = file_source(path).parts
    assert values(part) == ROWS
    facts = part.facts()
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (facts["bytes"], facts["rows"], facts["split"]) == (path.stat().st_size, 3, "train")


def test_parquet_is_read_in_batches_and_its_nulls_are_nulls(tmp_path):
    rows = [{"question": str(number), "answer": None if number % 2 else "x"} for number in range(BATCH * 2 + 1)]
    as_parquet(tmp_path / "rows", rows)
    (part,) = file_source(tmp_path / "rows.parquet").parts
    found = list(part.rows())
    assert [raw.value for raw in found] == rows
    assert [raw.number for raw in found] == list(range(1, len(rows) + 1))


def test_one_object_in_a_json_file_is_one_row(tmp_path):
    path = tmp_path / "train" / "algebra" / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(ROWS[0], indent=2))
    write_lines(tmp_path / "test" / "algebra" / "2.json", ROWS[1:2])
    parts = file_source(tmp_path).parts
    assert [(part.name, part.split, values(part)) for part in parts] == [
        ("test/algebra/2.json", "test", ROWS[1:2]),
        ("train/algebra/1.json", "train", ROWS[:1]),
    ]


def test_hidden_files_and_notes_are_no_rows_wherever_the_folder_is(tmp_path, monkeypatch):
    folder = tmp_path / ".cache" / "set"
    write_lines(folder / "train.jsonl", ROWS)
    write_lines(folder / ".git" / "train.jsonl", ROWS)
    write_lines(folder / "dataset_infos.json", [])
    assert [part.name for part in file_source(folder).parts] == ["train.jsonl"]
    (folder / "within").mkdir()
    monkeypatch.chdir(folder / "within")
    assert [part.name for part in file_source(Path("..")).parts] == ["train.jsonl"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("test.jsonl", "test"),
        ("dev.json", "validation"),
        ("validation_1.jsonl", "validation"),
        ("held_out.jsonl", "test"),
    ],
)
def test_a_split_is_told_by_the_name_of_a_file(tmp_path, name, split):
    (tmp_path / name).touch()
    assert [part.split for part in file_source(tmp_path).parts] == [split]


def test_what_is_no_source_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(SourceError, match=r"does not exist .* hub:OWNER/NAME"):
        file_source(tmp_path / "nowhere")
    (tmp_path / "rows.csv").touch()
    with pytest.raises(SourceError, match=r"rows.csv: is neither .jsonl, .json nor .parquet; convert it"):
        file_source(tmp_path / "rows.csv")
    with pytest.raises(SourceError, match=r"holds no .jsonl, .json nor .parquet file"):
        file_source(tmp_path)
    (tmp_path / "trainers.jsonl").touch()
    with pytest.raises(SourceError, match=r"trainers.jsonl says no split in its name"):
        file_source(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("rows.parquet", b"PAR1"), ("rows.json", b'[{"question": ')])
def test_a_torn_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"{name} is no .*fetch it again"):
        prepared(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def local_hub(tmp_path):
    """A folder that `datasets` loads as it loads a repository of the hub."""
    write_lines(tmp_path / "repository" / "data" / "train.jsonl", ROWS)
    write_lines(tmp_path / "repository" / "data" / "test.jsonl", rows_of("held out"))
    return str(tmp_path / "repository")


def test_a_data_set_of_the_hub_is_read_through_datasets(tmp_path):
    source = Source(
        hub.stream(local_hub(tmp_path), None, None), {"kind": "hub", "repository": "a/b", "revision": "f" * 40}
    )
    facts = prepare(Questions(), PACKAGE, source, tmp_path / "out", How()).manifest.facts
    assert asked(tmp_path / "out", "train") == [f"Q: {row['question']} {{kept}}" for row in ROWS]
    assert read(tmp_path / "out", "test")[0]["metadata"]["source"] == {"file": "test", "row": 1}
    assert facts.source["revision"] == "f" * 40
    assert [(item["name"], item["rows"]) for item in facts.source["files"]] == [("test", 1), ("train", 3)]
    assert all(len(item["rows_sha256"]) == 64 for item in facts.source["files"])
    again = Source(hub.stream(local_hub(tmp_path), None, None), source.facts)
    assert not prepare(Questions(), PACKAGE, again, tmp_path / "out", How()).anew


def test_a_row_of_the_hub_that_cannot_be_read_is_named(tmp_path):
    write_lines(tmp_path / "repository" / "train.jsonl", [*ROWS, {"question": "x", "answer": None}])
    source = Source(hub.stream(str(tmp_path / "repository"), None, None), {"kind": "hub"})
    with pytest.raises(RerollError, match=r"train:4: has no answer"):
        prepare(Questions(), PACKAGE, source, tmp_path / "out", How())


def test_a_stream_of_the_hub_that_breaks_off_leaves_nothing(tmp_path):
    repository = tmp_path / "repository"
    write_lines(repository / "train-0.jsonl", ROWS)
    content = "".join(json.dumps(row) + "\n" for row in rows_of(*map(str, range(2000)))).encode()
    (repository / "train-1.jsonl.gz").write_bytes(gzip.compress(content)[:-100])
    source = Source(hub.stream(str(repository), None, None), {"kind": "hub"})
    with pytest.raises(SourceError, match="cannot be had: .*--from FOLDER"):
        prepare(Questions(), PACKAGE, source, tmp_path / "out", How())
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_without_a_network_an_error_says_what_to_do():
    with pytest.raises(SourceError, match=r"hub:owner/name: cannot be had: .*--from FOLDER"):
        hub.hub_source("owner/name", None)
    with pytest.raises(SourceError, match=r"hub:owner/name: cannot be had: .*--from FOLDER"):
        hub.hub_source(f"owner/name@{'a' * 40}", None)
    with pytest.raises(SourceError, match=r"hub:a/b/c: is no OWNER/NAME"):
        hub.hub_source("a/b/c", None)


def test_without_the_extra_an_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for given in ("owner/name", f"owner/name@{'a' * 40}"):
        with pytest.raises(SourceError, match=r"pip install 'reroll\[hub\]'"):
            hub.hub_source(given, None)
