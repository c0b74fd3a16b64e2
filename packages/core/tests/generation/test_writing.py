"""Keeping attempts: what was told is on disk, and what fails is told."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from generation_cases import PAIRS, check_mended, finished_of, outcome_of, write
from results_folders import entry_of, protocol_of

from reroll.api import Task
from reroll.generation import writing
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, TRACE, TRIALS, read_journal, read_trace, traces_path
from reroll.generation.writing import ResultsWriter, folder_name
from reroll.traces.lines import Line

LAYOUTS = ("journal", "tree")
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


def entries_of(folder):
    return list(read_journal(folder, pytest.fail))


@layouts
def test_an_attempt_is_read_as_it_was_kept(layout, tmp_path):
    attempts = [finished_of(*pair, outcome_of(*pair)) for pair in PAIRS]
    write(tmp_path, [*attempts, finished_of(3, 0, "skipped")], layout)
    *entries, skipped = entries_of(tmp_path)
    assert [entry.at(None) for entry in entries] == [item.entry for item in attempts]
    assert (skipped.outcome, skipped.place) == ("skipped", None)
    for item, entry in zip(attempts, entries, strict=True):
        record = read_trace(tmp_path, entry)
        assert record["info"]["reroll"]["generation"] == item.entry.stamp()
        (trace,) = item.saved.group.traces
        assert Line(record).trace(trace.task) == trace
    assert traces_path(tmp_path).exists() == (layout == "journal")
    assert (tmp_path / TRIALS).exists() == (layout == "tree")


def test_traces_and_journal_go_on_where_they_ended(tmp_path):
    for pair in PAIRS:
        write(tmp_path, [finished_of(*pair)])
    places = [entry.place for entry in entries_of(tmp_path)]
    assert places[0][0] == 0
    assert [offset for offset, _ in places[1:]] == [offset + length for offset, length in places[:-1]]


@layouts
def test_hundreds_at_a_time_are_on_disk_when_they_are_told_of(layout, tmp_path):
    protocol = protocol_of(tasks=100, n_trials=3)

    async def body():
        writer = ResultsWriter(tmp_path, layout)

        async def add(position, trial):
            item = finished_of(position, trial, protocol=protocol)
            await writer.add([item])
            if position % 10 == 0:  # reading all of it after each would take long
                (entry,) = [one for one in entries_of(tmp_path) if (one.position, one.trial) == (position, trial)]
                assert read_trace(tmp_path, entry)["id"] == item.saved.group.traces[0].id

        async with asyncio.TaskGroup() as tasks:
            for position in range(100):
                for trial in range(3):
                    tasks.create_task(add(position, trial))
        writer.close()

    run(body())
    entries, states = check_mended(tmp_path, protocol)
    assert len(entries) == 300
    assert states.count(range(100))["passed"] == 300


@layouts
def test_a_trace_is_on_disk_before_the_journal_tells_of_it(layout, tmp_path, monkeypatch):
    """Power may be lost between any two writes: what the journal says must follow from what is synced before."""
    synced, inner, folders = [], writing._sync, writing.write_whole

    def note(file):
        inner(file)
        synced.append((Path(file.name).name, Path(file.name).stat().st_size))

    def note_whole(path, text):
        folders(path, text)
        synced.append((path.name, len(text.encode())))

    monkeypatch.setattr(writing, "_sync", note)
    monkeypatch.setattr(writing, "write_whole", note_whole)
    write(tmp_path, [finished_of(0, 0)], layout)
    first, second = synced
    path = next(tmp_path.rglob(TRACE)) if layout == "tree" else traces_path(tmp_path)
    assert first == (path.name, path.stat().st_size), "it is there as a whole"
    assert second == (JOURNAL, (tmp_path / JOURNAL).stat().st_size)


def test_what_was_added_is_written_when_the_writer_is_closed_at_once(tmp_path):
    async def body():
        writer = ResultsWriter(tmp_path, "journal")
        adding = [asyncio.create_task(writer.add([finished_of(*pair)])) for pair in PAIRS]
        await asyncio.sleep(0)
        writer.close()
        await asyncio.gather(*adding)

    run(body())
    assert len(entries_of(tmp_path)) == len(PAIRS)


def test_who_no_longer_waits_keeps_no_one_else_from_being_told(tmp_path):
    async def body():
        writer = ResultsWriter(tmp_path, "journal")
        adding = [asyncio.create_task(writer.add([finished_of(*pair)])) for pair in PAIRS]
        await asyncio.sleep(0)
        adding[0].cancel()
        found = await asyncio.gather(*adding, return_exceptions=True)
        assert [type(item) for item in found] == [asyncio.CancelledError, *[type(None)] * (len(PAIRS) - 1)]
        writer.close()

    run(body())
    assert len(entries_of(tmp_path)) == len(PAIRS), "what was begun is kept"


FULL = """
import asyncio, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from generation_cases import PAIRS, finished_of
from reroll.generation.writing import ResultsWriter

folder, layout = Path(sys.argv[2]), sys.argv[3]

async def main():
    writer = ResultsWriter(folder, layout)
    await writer.add([finished_of(0, 0)])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), -1))
    adds = [writer.add([finished_of(*pair)]) for pair in (PAIRS + PAIRS)[1:]]
    number = int(sys.argv[5])  # that are added at a time
    for first in range(0, len(adds), number):
        for error in await asyncio.gather(*adds[first : first + number], return_exceptions=True):
            print(type(error).__name__, getattr(error, "filename", None))
    writer.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("layout", "limit", "name"),
    [("journal", 5000, "train_rollouts.jsonl"), ("tree", 1000, TRACE), ("tree", 2000, JOURNAL)],
)
@pytest.mark.parametrize("number", [1, 30])
def test_a_file_that_cannot_be_written_is_named_to_all_who_wait(layout, limit, name, number, tmp_path):
    given = [str(Path(__file__).parent), str(tmp_path), layout, str(limit), str(number)]
    command = [sys.executable, "-c", FULL, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line != "NoneType None"]
    assert len(lines) == 2 * len(PAIRS) - 1
    assert len(failed) >= len(PAIRS), "after a failure nothing more is written"
    assert lines[-len(failed) :] == failed
    assert {Path(line.split()[1]).name for line in failed} == {name}
    assert {line.split()[0] for line in failed} == {"OSError"}
    entries, _ = check_mended(tmp_path)
    assert (0, 0) in {(entry.position, entry.trial) for entry in entries}
    assert len(entries) >= len(lines) - len(failed) + 1


@layouts
def test_files_that_are_removed_while_they_are_written_are_told(layout, tmp_path):
    async def main():
        folder = tmp_path / "results"
        writer = ResultsWriter(folder, layout)
        try:
            await writer.add([finished_of(0, 0)])
            shutil.rmtree(folder)
            with pytest.raises(FileNotFoundError) as raised:
                await writer.add([finished_of(0, 1)])
        finally:
            writer.close()
        named = traces_path(folder) if layout == "journal" else folder / JOURNAL
        assert raised.value.filename == str(named)
        assert raised.value.strerror == "was removed while the generation wrote to it"

    run(main())


class Odd:
    def __str__(self):
        return "odd"


def test_what_json_does_not_know_is_kept_as_text(tmp_path):
    given = {"nan": float("nan"), "odd": Odd(), "lone": "\ud800", "path": Path("/a"), "many": (1, 2), "bytes": b"\xff"}
    write(tmp_path, [finished_of(0, 0, info=given)])
    (entry,), _ = check_mended(tmp_path)
    info = read_trace(tmp_path, entry)["info"]
    assert info["nan"] == "NaN"
    assert info["odd"] == "odd"
    assert info["lone"] == "\ud800"
    assert (info["path"], info["many"]) == ("/a", [1, 2])


def circle():
    found = {}
    found["again"] = found
    return found


def deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize("value", [circle, deep, lambda: {(1, 2): 3}], ids=["circle", "deep", "key"])
def test_a_trace_that_cannot_be_saved_is_named(value, tmp_path):
    async def body():
        writer = ResultsWriter(tmp_path, "journal")
        await writer.add([finished_of(0, 0)])
        with pytest.raises(ResultsError, match=r"the trace of main-1, trial 2 cannot be saved as JSON: "):
            await writer.add([finished_of(1, 2, info={"strange": value()})])
        writer.close()

    run(body())
    (entry,), _ = check_mended(tmp_path)
    assert (entry.position, entry.trial) == (0, 0)


def test_folders_of_tasks_are_their_own_whatever_their_tasks_are_called(tmp_path):
    names = ["", "..", "../../x", "a/b", "a\\b", "a" * 500, "\0", "é ü", "CON", "..hidden", "\ud800", "a b", "a_b"]
    protocol = protocol_of(tasks=2 * len(names), n_trials=1)
    attempts = [
        finished_of(position, 0, protocol=protocol, prepared_sample_id=name) for position, name in enumerate(2 * names)
    ]
    folders = [folder_name(item.entry) for item in attempts]
    assert len(set(folders)) == len(folders)
    write(tmp_path, attempts, "tree")
    assert sorted(path.name for path in (tmp_path / TRIALS).iterdir()) == sorted(folders)
    assert len(entries_of(tmp_path)) == len(attempts)
    assert all(json.loads((tmp_path / TRIALS / name / "0" / TRACE).read_text())["id"] for name in folders)


def test_a_tasks_folder_follows_from_the_task_alone():
    protocol = protocol_of()
    assert folder_name(entry_of(protocol, 1, 0)) == folder_name(entry_of(protocol, 1, 2, "failed"))
    assert isinstance(finished_of(1, 0).saved.group.task, Task)
