"""Sorted files, their merging, and a pass over files in several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))  # where other processes find it, too
from called_elsewhere import Lengths, add, exit_at_once, fail

from reroll_records.aggregation import aggregate as aggregation
from reroll_records.aggregation.aggregate import Part, aggregate
from reroll_records.aggregation.spilling import BLOCK, Key, SortedFile, SortedWriter, boundaries, few, merged, sort
from reroll_records.aggregation.workers import in_processes
from reroll_records.store.layout import StoreError


def files_of(folder: Path, tables: Iterable[Mapping[Key, int]]) -> list[SortedFile]:
    with SortedWriter(folder / "runs") as writer:
        return [writer.write(sort(table.items())) for table in tables]


keys = st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=2))


@given(st.lists(st.dictionaries(keys, st.integers(), max_size=12), max_size=6), st.integers(1, 5))
@settings(max_examples=60)
def test_merged_files_hold_every_key_once_in_order_and_ranges_of_them_are_everything(tmp_path_factory, tables, parts):
    files = files_of(tmp_path_factory.mktemp("runs"), tables)
    sums: Counter[Key] = Counter()
    for table in tables:
        sums.update(table)
    expected = sort((key, sums[key]) for key in {key for table in tables for key in table})
    assert list(merged(files, add)) == expected
    pieces = [list(merged(files, add, low, high)) for low, high in boundaries(files, parts)]
    assert [item for piece in pieces for item in piece] == expected


def test_ranges_begin_within_a_run(tmp_path):
    files = files_of(tmp_path, [{("k", number): 1 for number in range(start, 60 * BLOCK, 3)} for start in range(3)])
    ranges = boundaries(files, 4)
    assert len(ranges) == 4
    sizes = [len(list(merged(files, add, low, high))) for low, high in ranges]
    assert sum(sizes) == 60 * BLOCK
    assert min(sizes) > 10 * BLOCK


def test_many_sorted_files_become_few_with_the_same_items(tmp_path):
    files = files_of(tmp_path, [{("k", number % 7): 1, ("l", number): 1} for number in range(200)])
    fewer = few(files, add, tmp_path)
    assert len(fewer) <= 64
    assert list(merged(fewer, add)) == list(merged(files, add))


def line(length: int) -> str:
    row = {"kind": "disposition", "schema": 1, "observation_id": "o" * length, "disposition": "consumed"}
    return json.dumps(row | {"staleness": 0, "time": 1.0}) + "\n"


def store_of(folder: Path, files: int, lines: int) -> list[Part]:
    parts = []
    for number in range(files):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(line(length % 5) for length in range(lines)) + "no row\n")
        parts.append(Part(number, path, 0, path.stat().st_size, whole=True))
    return parts


@pytest.mark.parametrize("weight", [0, 1000])
def test_processes_spilling_and_cut_files_change_nothing(tmp_path, monkeypatch, weight):
    """Each of two files is read in pieces by two processes; with a weight, everything is written out after each row."""
    monkeypatch.setattr(aggregation, "PAYS", 0)
    monkeypatch.setattr(aggregation, "SHARE", 4000)
    parts = store_of(tmp_path, 2, 150)
    collected = aggregate(parts, partial(Lengths, weight), add, tmp_path, 2, 1)
    counts = {key: count for key, count in merged(collected.files, add) if key[0] == "length"}
    assert counts == {("length", length): 60 for length in range(5)}
    assert collected.unreadable == {0: 1, 1: 1}
    assert collected.rows == {0: 150, 1: 150}


def test_an_attempt_is_closed_only_if_it_was_read_whole_and_nothing_of_it_was_written_out(tmp_path, monkeypatch):
    parts = store_of(tmp_path, 2, 10)
    spilled = aggregate(parts, partial(Lengths, 1000), add, tmp_path, 1, 1)
    assert [key for key, _ in merged(spilled.files, add) if key[0] == "closed"] == []
    whole = aggregate(parts, partial(Lengths, 0), add, tmp_path, 1, 1)
    assert [key for key, _ in merged(whole.files, add) if key[0] == "closed"] == [("closed", 0), ("closed", 1)]
    monkeypatch.setattr(aggregation, "PAYS", 0)
    monkeypatch.setattr(aggregation, "SHARE", 400)
    cut = aggregate(parts, partial(Lengths, 0), add, tmp_path, 2, 1)
    assert [key for key, _ in merged(cut.files, add) if key[0] == "closed"] == []


def test_processes_answer_in_order_and_the_first_error_is_raised():
    assert in_processes(divmod, [(number, 3) for number in range(7)], 2) == [divmod(number, 3) for number in range(7)]
    with pytest.raises(StoreError, match="third"):
        in_processes(fail, [(number,) for number in range(8)], 2)


def test_process_that_ends_is_an_error_with_a_remedy():
    with pytest.raises(StoreError, match="less memory or fewer processes"):
        in_processes(exit_at_once, [(1,), (2,)], 2)


def test_processes_start_from_a_script_without_a_main_guard(tmp_path):
    """Multiprocessing would run the script again in each of them."""
    script = tmp_path / "plain.py"
    script.write_text(
        "from reroll_records.aggregation.workers import in_processes\n"
        "print(in_processes(divmod, [(7, 2), (8, 3)], 2))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(3, 1), (2, 2)]"
