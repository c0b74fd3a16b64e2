"""Several results folders counted as one."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.generation.bands import Band
from reroll.generation.entries import Entry
from reroll.generation.merging import merge, results_folders
from reroll.generation.outputs import Outputs, conclude
from reroll.generation.protocol import FILE, ResultsError
from reroll.generation.store import JOURNAL

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import Results, entry_of, protocol_of, whole_run


def nothing_said(text):
    raise AssertionError(text)


def files(folders, output):
    merged = merge(results_folders(folders), nothing_said)
    outputs = Outputs.beside(output)
    conclude(merged.tally, merged.protocol, Band.parse("(0, 1)"), outputs, folders)
    return merged, [path.read_bytes() for path in (outputs.index, outputs.table, outputs.picture)]


def bare(folder, protocol, entries):
    """A folder without traces: they are not looked at."""
    folder.mkdir(parents=True)
    protocol.write(folder)
    (folder / JOURNAL).write_bytes(b"".join(entry.line() for entry in entries))
    return folder


def shards(folder, protocol, of, entries=whole_run):
    found = []
    for number in range(1, of + 1):
        part = protocol.model_copy(update={"shard": (number, of)})
        found.append(bare(folder / f"shard-{number}-of-{of}", part, entries(part)))
    return found


@settings(max_examples=25)
@given(st.integers(1, 5), st.data())
def test_a_split_of_any_kind_merges_to_the_whole(of, data):
    """Shards in any order, some given twice, one of them run in two parts that know of each other's attempts."""
    protocol = protocol_of(tasks=9)
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole = bare(folder / "whole", protocol, whole_run(protocol))
        given_folders = data.draw(st.permutations(shards(folder, protocol, of)))
        twice = data.draw(st.lists(st.sampled_from(given_folders), max_size=2))
        merged, found = files([*given_folders, *twice], folder / "merged.parquet")
        assert found == files([whole], folder / "w.parquet")[1]
        assert merged.complete and merged.absent == []
        again = sum(len((part / JOURNAL).read_bytes().splitlines()) for part in twice)
        assert merged.tally.repeated == again
        assert any("met again" in line for line in merged.lines()) == bool(again)


@settings(max_examples=25)
@given(st.data())
def test_attempts_of_one_run_split_over_folders_merge_to_the_whole(data):
    protocol = protocol_of(tasks=5)
    entries = list(whole_run(protocol))
    homes = data.draw(st.lists(st.integers(0, 2), min_size=len(entries), max_size=len(entries)))
    errors = data.draw(st.lists(st.sampled_from(entries[:-1]), max_size=5))
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole = bare(folder / "whole", protocol, entries)
        parts = [
            bare(
                folder / f"part{number}",
                protocol,
                [replace(item, outcome="error", reward=None, final=False) for item in errors]
                + [item for item, home in zip(entries, homes, strict=True) if home == number],
            )
            for number in range(3)
        ]
        merged, found = files(parts, folder / "merged.parquet")
        assert found == files([whole], folder / "w.parquet")[1]
        assert merged.complete


def test_a_folder_stands_for_the_shards_in_it(tmp_path):
    protocol = protocol_of()
    shards(tmp_path / "results", protocol, 2)
    (tmp_path / "results/logs").mkdir()
    assert [folder.path.name for folder in results_folders([tmp_path / "results"])] == ["shard-1-of-2", "shard-2-of-2"]


def test_what_is_missing_is_told(tmp_path):
    protocol = protocol_of(tasks=20, n_trials=4)
    parts = shards(tmp_path, protocol, 3, lambda part: [])
    (parts[0] / JOURNAL).write_bytes(
        b"".join(
            [
                entry_of(protocol, 0, 0).line(),
                entry_of(protocol, 0, 2, "error").line(),
                entry_of(protocol, 3, 0, "skipped").line(),
                *(entry_of(protocol, position, trial).line() for position in (9, 12, 15, 18) for trial in range(4)),
            ]
        )
    )
    merged = merge(results_folders([parts[0], parts[2]]), nothing_said)
    assert not merged.complete
    lines = list(merged.lines())
    assert lines[0] == "not given: shard 2 of 3"
    assert lines[1] == f"{parts[0]}: 7 attempts of 2 tasks not finished: main-0 (trials 1 to 3), task 6 (trials 0 to 3)"
    assert lines[2].startswith(f"{parts[2]}: 24 attempts of 6 tasks not finished: task 2 (") and lines[2].endswith("…")


def test_shards_of_another_count_stand_in_for_those_not_given(tmp_path):
    protocol = protocol_of(tasks=8)
    halves, quarters = shards(tmp_path / "a", protocol, 2), shards(tmp_path / "b", protocol, 4)
    assert merge(results_folders([halves[0], quarters[1], quarters[3]]), nothing_said).complete
    assert merge(results_folders([halves[0], quarters[1]]), nothing_said).absent == ["2 of 2", "4 of 4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"how": {"temperature": 0.7}}, r"how.temperature: 1.0 and 0.7"),
        ({"seed": 3}, "seed: 0 and 3"),
        ({"n_trials": 5}, "larger generation.n_trials(.|\n)*n_trials: 3 and 5"),
    ],
)
def test_two_protocols_are_not_mixed(tmp_path, change, message):
    one = bare(tmp_path / "one", protocol_of(), [])
    two = bare(tmp_path / "two", protocol_of(**change), [])
    with pytest.raises(ResultsError, match=rf"one and .*two were measured differently(.|\n)*{message}"):
        results_folders([one, two])


def test_folders_of_something_else_are_refused(tmp_path):
    with pytest.raises(ResultsError, match="nowhere is no folder; give the results folder"):
        results_folders([tmp_path / "nowhere"])
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(ResultsError, match=f"run holds no results of .*has a {FILE}"):
        results_folders([tmp_path / "run"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ('{"schema": 9}', "schema 9; this version reads 1"),
        ('{"schema": 1}', "name: field required"),
    ],
)
def test_a_protocol_that_cannot_be_read_is_named(tmp_path, text, message):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ResultsError, match=f"generation.json.*{message}"):
        results_folders([tmp_path])


def test_torn_and_damaged_lines_are_told_and_left_out(tmp_path):
    protocol = protocol_of(tasks=2, n_trials=2)
    lines = [entry_of(protocol, position, trial).line() for position in range(2) for trial in range(2)]
    folder = bare(tmp_path / "one", protocol, [])
    (folder / JOURNAL).write_bytes(lines[0] + b'{"position": "x"}\n\0\0\n' + lines[1] + lines[2] + lines[3][:-5])
    said = []
    merged = merge(results_folders([folder]), said.append)
    assert len(said) == 1 and "journal.jsonl: 2 lines cannot be read and are left out, first line 2: " in said[0]
    assert [str(gap) for gap in merged.gaps.values()] == ["1 attempt of 1 task not finished: more-0 (trial 1)"]


def test_a_folder_without_a_journal_counts_as_not_begun(tmp_path):
    folder = bare(tmp_path / "one", protocol_of(), [])
    (folder / JOURNAL).unlink()
    said = []
    assert merge(results_folders([folder]), said.append).gaps[folder].attempts == 18
    assert len(said) == 1 and "start its generation again" in said[0]


def test_results_beyond_what_was_asked_for_are_told(tmp_path):
    protocol = protocol_of(tasks=2, n_trials=1)
    beyond = [entry_of(protocol, 0, 1), entry_of(protocol, 7, 0), entry_of(protocol, 0, 0)]
    said = []
    merged = merge(results_folders([bare(tmp_path / "one", protocol, beyond)]), said.append)
    assert said == [f"{tmp_path / 'one'}: 2 results of other tasks, or beyond 1 trials, left out"]
    assert [result.n_pass for result in merged.tally.tasks()] == [1]


def test_only_tasks_asked_for_by_name_are_expected(tmp_path):
    protocol = protocol_of(instances=[1, 4])
    folder = bare(tmp_path / "one", protocol, [])
    merged = merge(results_folders([folder]), nothing_said)
    assert (len(merged.tally), merged.tally.missing) == (2, 6)


def test_the_helper_writes_what_is_read(tmp_path):
    results = Results(tmp_path / "one", protocol_of()).add_all(whole_run(protocol_of()))
    merged = merge(results_folders([results.folder]), nothing_said)
    assert merged.complete and isinstance(next(merged.folders[0].entries(nothing_said)), Entry)
