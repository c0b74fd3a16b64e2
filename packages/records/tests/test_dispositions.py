"""What became of a group, where its attempt says it twice: every reader tells the same."""

import json
from itertools import permutations

import pytest
from written_store import compact, consumed, expired, exported_rows, group, key, manifest, write

from reroll_records.api import open_store
from reroll_records.export.dataset import Choice, write_dataset
from reroll_records.inspection.search import find
from reroll_records.summary.summarize import summarize

TWICE = list(permutations([group("1"), consumed("1", staleness=2), expired("1", staleness=7)]))


def summarized(store, output, engine):
    summarize(store, output, engine)
    rows = json.loads((output / "tokens.json").read_bytes())["rows"]
    return [(row["disposition"], row["groups"]) for row in rows]


@pytest.mark.parametrize("in_parquet", [False, True], ids=["lines", "parquet"])
@pytest.mark.parametrize("rows", TWICE)
def test_consumed_prevails_over_expired_in_every_reader_and_in_any_order(tmp_path, rows, in_parquet):
    path = write(tmp_path / "store", manifest("a"), [*rows, expired("2"), group("2")])
    if in_parquet:
        compact(path)
    store = open_store(tmp_path / "store")
    for engine in ("auto", "duckdb"):
        assert summarized(tmp_path / "store", tmp_path / engine, engine) == [("consumed", 1), ("expired", 1)]
    write_dataset(store, tmp_path / "set", Choice("groups"))
    exported = {
        row["observation_id"]: (row["disposition"], row["staleness"]) for row in exported_rows(tmp_path / "set")
    }
    assert exported == {"1": ("consumed", 2), "2": ("expired", 9)}
    (cell,) = find(store, key("prompt")).history.cells
    assert (cell.dispositions, cell.staleness) == ({"consumed": 1, "expired": 1}, {2: 1, 9: 1})


def test_of_two_dispositions_that_say_the_same_the_first_counts(tmp_path):
    write(tmp_path / "store", manifest("a"), [consumed("1", 4), group("1"), consumed("1", 3), consumed("1", 5)])
    store = open_store(tmp_path / "store")
    write_dataset(store, tmp_path / "set", Choice("groups"))
    assert [row["staleness"] for row in exported_rows(tmp_path / "set")] == [4]
    (cell,) = find(store, key("prompt")).history.cells
    assert (cell.dispositions, cell.staleness) == ({"consumed": 1}, {4: 1})


def test_two_groups_of_one_observation_both_left_as_its_disposition_says(tmp_path):
    """No writer gives such rows; still the dispositions come to as many as the groups."""
    write(tmp_path / "store", manifest("a"), [group("1"), consumed("1", 4), group("1")])
    assert summarized(tmp_path / "store", tmp_path / "out", "auto") == [("consumed", 2)]
    (cell,) = find(open_store(tmp_path / "store"), key("prompt")).history.cells
    assert (cell.groups, cell.dispositions, cell.staleness) == (2, {"consumed": 2}, {4: 2})
