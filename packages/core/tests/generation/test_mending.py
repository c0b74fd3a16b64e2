"""Whatever a kill or a hand left: each whole trace counts once, and what is lost is tried again."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from generation_cases import PAIRS, check_mended, files, finish, finished_of, outcome_of, stamps, write

from reroll.generation.mending import mend
from reroll.generation.store import JOURNAL, TRACE, TRIALS, read_journal, traces_path

LAYOUTS = ("journal", "tree")
PARTS = st.floats(0, 1)
DAMAGE = st.one_of(
    st.tuples(st.just("cut journal"), PARTS),
    st.tuples(st.just("cut traces"), PARTS),
    st.tuples(st.just("cut both"), PARTS, PARTS),
    st.tuples(st.just("flip in journal"), PARTS, st.integers(1, 255)),
    st.tuples(st.just("repeat a line"), PARTS, PARTS),
    st.tuples(st.just("take a line out"), PARTS),
    st.tuples(st.just("no journal")),
    st.tuples(st.just("no traces")),
    st.tuples(st.just("no folder"), PARTS),
    st.tuples(st.just("a partial file"), st.binary(max_size=30)),
    st.tuples(st.just("strange bytes in traces"), st.binary(max_size=30)),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders with an attempt of every trial, some of which failed and were tried again, by the layouts of their
    halves."""
    made = {}
    for first in LAYOUTS:
        for second in LAYOUTS:
            folder = made[first, second] = tmp_path_factory.mktemp("results")
            attempts = [finished_of(*pair, outcome_of(*pair)) for pair in PAIRS]
            write(folder, attempts[:6], first)
            write(folder, attempts[6:9], second)
            errors = [item.entry for item in attempts[:9] if item.entry.outcome == "error"]
            assert errors, "some are tried again"
            write(folder, [finished_of(item.position, item.trial, "failed") for item in errors], second)
            write(folder, [finished_of(3, 0, "skipped")], second)
    return made


def place(part, size):
    return min(int(part * size), size - 1)


def damage(folder, kind, *how):
    journal, traces = folder / JOURNAL, traces_path(folder)
    if kind == "cut both":
        damage(folder, "cut journal", how[0])
        damage(folder, "cut traces", how[1])
    elif kind in ("cut journal", "cut traces"):
        path = journal if kind == "cut journal" else traces
        if path.exists():
            os.truncate(path, int(how[0] * path.stat().st_size))
    elif kind in ("flip in journal", "repeat a line", "take a line out"):
        if journal.exists() and (text := bytearray(journal.read_bytes())):
            if kind == "flip in journal":
                text[place(how[0], len(text))] ^= how[1]
            else:
                lines = text.splitlines(keepends=True)
                line = lines[place(how[0], len(lines))]
                if kind == "repeat a line":
                    lines.insert(place(how[1], len(lines)), line)
                else:
                    lines.remove(line)
                text = b"".join(lines)
            journal.write_bytes(text)
    elif kind in ("no journal", "no traces"):
        (journal if kind == "no journal" else traces).unlink(missing_ok=True)
    elif kind == "no folder":
        if folders := sorted(folder.glob(f"{TRIALS}/*/*")) + sorted(folder.glob(f"{TRIALS}/*")):
            shutil.rmtree(folders[place(how[0], len(folders))])
    elif kind == "a partial file":
        (folder / (JOURNAL + ".partial")).write_bytes(how[0])
    elif kind == "strange bytes in traces" and traces.exists():
        with traces.open("ab") as file:
            file.write(how[0])


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.lists(DAMAGE, min_size=1, max_size=3), st.data())
def test_whatever_happens_to_a_folder_it_is_whole_again_and_is_gone_on_from(written, first, second, damages, data):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "results"
        shutil.copytree(written[first, second], folder)
        for kind, *how in damages:
            damage(folder, kind, *how)
        before = stamps(folder)
        _, states = check_mended(folder)
        assert [stamp for stamp in before if stamp not in stamps(folder)] == [], "mending throws no trace away"
        finish(folder, states, data.draw(st.sampled_from(LAYOUTS)))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 10_000), st.integers(1, 255))
def test_no_bit_of_the_journal_makes_another_result(written, layout, at, change):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "results"
        shutil.copytree(written[layout, layout], folder)
        text = bytearray((folder / JOURNAL).read_bytes())
        text[at % len(text)] ^= change
        (folder / JOURNAL).write_bytes(text)
        entries, _ = check_mended(folder)
        assert {entry.line() for entry in entries} <= set(text_of(written[layout, layout]))


def text_of(folder):
    return (folder / JOURNAL).read_bytes().splitlines(keepends=True)


def test_an_untouched_folder_is_left_as_it_is(written):
    for folder in written.values():
        before = files(folder)
        noted, warnings = [], []
        mend(folder, noted.append, warnings.append)
        assert noted == list(read_journal(folder, warnings.append))
        assert (files(folder), warnings) == (before, [])


def test_an_empty_folder_needs_no_mending(tmp_path):
    mend(tmp_path, pytest.fail, pytest.fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["journal", "traces"])
def test_a_line_whose_end_alone_is_missing_is_no_line(layout, name, tmp_path):
    """What is appended would join it."""
    write(tmp_path, [finished_of(*pair) for pair in PAIRS[:5]], layout)
    path = tmp_path / JOURNAL if name == "journal" or layout == "tree" else traces_path(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    entries, states = check_mended(tmp_path)
    assert len(entries) == (4 if path == traces_path(tmp_path) else 5)
    finish(tmp_path, states, layout)


def test_what_was_lost_and_found_is_told(tmp_path):
    write(tmp_path, [finished_of(*pair) for pair in PAIRS])
    path = traces_path(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    text = (tmp_path / JOURNAL).read_bytes().replace(b'"tokens":2', b'"tokens":9', 1)
    (tmp_path / JOURNAL).write_bytes(text + text.splitlines(keepends=True)[3])
    warnings = []
    mend(tmp_path, lambda entry: None, warnings.append)
    assert [text.partition(": ")[2] for text in warnings] == [
        "the traces of 1 attempt are gone; they are made again",
        "1 line cannot be read; what they said is read from the traces, as far as those are there",
        "1 line repeat what another one tells; each trace counts once",
    ]


def test_a_try_that_was_kept_in_the_folder_of_an_earlier_one_is_found(tmp_path):
    """The trace is renamed into place before the journal is written to."""
    write(tmp_path, [finished_of(1, 1, "error")], "tree")
    journal = (tmp_path / JOURNAL).read_bytes()
    write(tmp_path, [finished_of(1, 1, "failed")], "tree")
    (tmp_path / JOURNAL).write_bytes(journal)
    entries, states = check_mended(tmp_path)
    assert [entry.outcome for entry in entries] == ["error", "failed"]
    assert states.missing(1) == [0, 2]


def test_traces_that_the_journal_tells_of_are_not_read_again(tmp_path, monkeypatch):
    """A start must not take as long as reading everything."""
    write(tmp_path, [finished_of(0, 0), finished_of(0, 1, "failed")], "tree")
    write(tmp_path, [finished_of(0, 2)])
    read, inner = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or inner(path))
    monkeypatch.setattr("reroll.generation.mending.entry_of_trace", lambda line: pytest.fail("a trace is read"))
    noted = []
    mend(tmp_path, noted.append, pytest.fail)
    assert (len(noted), [path for path in read if path.name == TRACE]) == (3, [])


WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from generation_cases import check_mended, finished_of, outcome_of
from results_folders import protocol_of
from reroll.generation.writing import ResultsWriter

protocol = protocol_of(tasks=40, n_trials=3)

async def attempt(writer, position, trial):
    await writer.add([finished_of(position, trial, outcome_of(position, trial), protocol)])
    print(position, trial, flush=True)

async def main():
    folder = Path(sys.argv[2])
    _, states = check_mended(folder, protocol)
    print("writes", flush=True)
    writer = ResultsWriter(folder, sys.argv[3])
    async with asyncio.TaskGroup() as tasks:
        for position in range(protocol.tasks):
            for trial in states.missing(position):
                tasks.create_task(attempt(writer, position, trial))
            await asyncio.sleep(0)
    writer.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_process_had_told_of_is_there(layout, tmp_path):
    from results_folders import protocol_of

    protocol, draw, acknowledged = protocol_of(tasks=40, n_trials=3), random.Random(7), set()
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(tmp_path), layout]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "writes\n"
            for _ in range(draw.randrange(1, 30)):
                if line := process.stdout.readline():
                    acknowledged.add(tuple(map(int, line.split())))
            process.send_signal(signal.SIGKILL)
            # What it had said until then counts as well, if the line is whole.
            rest = process.stdout.read().splitlines(keepends=True)
            acknowledged |= {tuple(map(int, line.split())) for line in rest if line.endswith("\n")}
        entries, states = check_mended(tmp_path, protocol)
        assert acknowledged <= {(entry.position, entry.trial) for entry in entries}
    assert acknowledged
    finish(tmp_path, states, layout, protocol)
