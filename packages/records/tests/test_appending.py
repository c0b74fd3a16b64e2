"""Whole rows at the end of a record file: after a torn row, beside other processes, on a full disk, after SIGKILL."""

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll_records.store import appending
from reroll_records.store.appending import Appender, AppendError, _cut_back
from reroll_records.store.lines import complete_lines, ends_incomplete, parse
from reroll_records.store.liveness import lock

SOURCES = Path(__file__).parents[1] / "src"


def row(number, text="é and 🦊", size=0):
    return {
        "kind": "disposition",
        "schema": 1,
        "observation_id": f"{number}",
        "disposition": "consumed",
        "staleness": 1,
        "time": 0.5,
        "note": text + "x" * size,
    }


def line(number, **more):
    return json.dumps(row(number, **more), ensure_ascii=False).encode()


def append(path, *rows):
    with Appender.open(path) as file:
        file.append(rows)


def read(path):
    """Ids of the rows, and how many lines are none."""
    found = [parse(part) for part in complete_lines(path)]
    return [item["observation_id"] for item in found if item], sum(item is None for item in found)


def run(code, *arguments):
    """Another process, with this package."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_torn_last_line_never_swallows_the_next_one_wherever_it_was_cut(tmp_path):
    path = tmp_path / "records.jsonl"
    before, last = b"".join(line(number) + b"\n" for number in range(3)), line(3) + b"\n"
    assert len(last) != len(last.decode())  # so that some cuts fall within a character
    for cut in range(len(last) + 1):
        path.write_bytes(before + last[:cut])
        append(path, line("new"))
        found, unreadable = read(path)
        # A cut before the newline alone leaves a row that is whole once the newline is there.
        assert found == ["0", "1", "2", *(["3"] if cut >= len(last) - 1 else []), "new"], cut
        assert unreadable == (0 if cut in (0, len(last) - 1, len(last)) else 1), cut
        assert path.read_bytes().startswith(before + last[:cut])


@given(st.binary(max_size=40), st.lists(st.integers(0, 99), max_size=5))
def test_rows_are_read_back_behind_whatever_a_file_ended_with(tmp_path_factory, rest, numbers):
    path = tmp_path_factory.mktemp("rest") / "records.jsonl"
    path.write_bytes(rest)
    append(path, *(line(number) for number in numbers))
    found, _ = read(path)
    assert found == [str(number) for number in numbers]
    assert path.read_bytes().startswith(rest)
    assert not numbers or not ends_incomplete(path, path.stat().st_size)


def test_rows_of_one_call_and_of_later_ones_stand_in_order(tmp_path):
    path = tmp_path / "records.jsonl"
    with Appender.open(path) as file:
        file.append([])
        assert path.read_bytes() == b""
        file.append([line(0), line(1)])
        file.append([line(2)])
        assert file.locked
    assert read(path) == (["0", "1", "2"], 0)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append([line(3)])


def test_a_row_of_two_lines_is_refused_and_nothing_of_the_call_is_written(tmp_path):
    path = tmp_path / "records.jsonl"
    with Appender.open(path) as file, pytest.raises(ValueError, match="newline within"):
        file.append([line(0), b"{}\n{}"])
    assert path.read_bytes() == b""


SIX = """
import sys
from pathlib import Path
from reroll_records.store.appending import Appender
path, name, part = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
filler = "é🦊" * 50_000
def line(number):
    return ('{"kind": "disposition", "schema": 1, "observation_id": "%s-%d", "disposition": "consumed", "staleness": 1,'
            ' "time": 0.5, "note": "%s"}' % (name, number, filler)).encode()
sys.stdin.readline()
if part == "whole":
    with Appender.open(path) as file:
        for number in range(50):
            file.append([line(number)])
else:
    with open(path, "ab") as file:
        for number in range(50):
            data = line(number) + b"\\n"
            for start in range(0, len(data), 4096):
                file.write(data[start : start + 4096])
"""


def six_writers(path, part):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", SIX, str(path), str(number), part],
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            stdin=subprocess.PIPE,
        )
        for number in range(6)
    ]
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0] * 6
    return read(path)


def test_six_processes_that_write_fifty_records_of_300_kb_each_leave_300_records_and_each_parses(tmp_path):
    path = tmp_path / "records.jsonl"
    found, unreadable = six_writers(path, "whole")
    assert unreadable == 0
    assert sorted(found) == sorted(f"{name}-{number}" for name in range(6) for number in range(50))
    for name in range(6):
        assert [item for item in found if item[0] == str(name)] == [f"{name}-{number}" for number in range(50)]
    assert path.stat().st_size > 300 * 300_000


def test_plain_buffered_writes_of_six_processes_tear_each_others_records(tmp_path):
    """The control of the test above: it can fail."""
    found, unreadable = six_writers(tmp_path / "records.jsonl", "pieces")
    assert len(found) < 300
    assert unreadable


LIMITED = """
import resource, sys
from pathlib import Path
from reroll_records.store.appending import AppendError, Appender
path, limit = Path(sys.argv[1]), int(sys.argv[2])
def line(number):
    return ('{"kind": "disposition", "schema": 1, "observation_id": "%d", "disposition": "consumed", "staleness": 1,'
            ' "time": 0.5}' % number).encode()
def set_limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
set_limit(limit)
with Appender.open(path) as file:
    try:
        file.append([line(number) for number in range(5)])
        whole = 5
    except AppendError as error:
        whole = error.whole
        print(error.errno, error)
    try:
        file.append([line(6)])
    except AppendError as error:
        assert error.whole == 0
        print(error.errno, error)
    set_limit(resource.RLIM_INFINITY)
    file.append([line(9)])
print(whole)
"""


@pytest.mark.parametrize("torn", [b"", b'{"torn": "\xc3'])
def test_on_a_full_disk_rows_are_lost_and_counted_and_what_is_there_stays_whole(tmp_path, torn):
    path = tmp_path / "records.jsonl"
    before = line("before") + b"\n" + torn
    size = len(
        b'{"kind": "disposition", "schema": 1, "observation_id": "0", "disposition": "consumed", "staleness": 1,'
    )
    size += len(b' "time": 0.5}\n')
    newline = bool(torn)
    for room in [0, 1, 2, size - 1, size, size + 1, 2 * size, 3 * size - 1, 3 * size + 40, 5 * size - 1]:
        path.write_bytes(before)
        child = run(LIMITED, path, len(before) + room)
        output, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        whole = min(max(room - newline, 0) // size, 5)
        assert output.splitlines()[-1] == str(whole), room
        assert output.startswith(f"{errno.EFBIG} ") and f"{whole} of 5 rows were appended" in output
        assert read(path) == (["before", *map(str, range(whole)), "9"], int(newline)), room


def test_a_file_that_was_removed_under_its_writer_is_said_and_not_written_to_in_vain(tmp_path):
    path = tmp_path / "records.jsonl"
    with Appender.open(path) as file:
        file.append([line(0)])
        path.unlink()
        with pytest.raises(AppendError, match="0 of 1 rows were appended: the file was removed"):
            file.append([line(1)])
        path.write_bytes(b"")
        with pytest.raises(AppendError, match="the file was removed"):
            file.append([line(1)])


def test_bytes_that_another_hand_wrote_behind_a_torn_row_are_not_cut_away(tmp_path):
    """A writer that takes no lock appended meanwhile: what is torn stays, and its rows stay too."""
    path = tmp_path / "records.jsonl"
    for rest in (b"", b"\n" + line("other") + b"\n"):
        path.write_bytes(line(0) + b"\n" + line(1)[:20] + rest)
        descriptor = os.open(path, os.O_RDWR)
        _cut_back(descriptor, len(line(0)) + 1, 20, 0)
        os.close(descriptor)
        append(path, line(2))
        assert read(path) == ((["0", "other", "2"], 1) if rest else (["0", "2"], 0))


FOREVER = """
import sys
from pathlib import Path
from reroll_records.store.appending import Appender
path, name = Path(sys.argv[1]), sys.argv[2]
number = 0
with Appender.open(path) as file:
    while True:
        rows = [('{"kind": "disposition", "schema": 1, "observation_id": "%s-%d", "disposition": "consumed",'
                 ' "staleness": 1, "time": 0.5, "note": "%s"}' % (name, number + i, "é🦊" * 20_000)).encode()
                for i in range(3)]
        file.append(rows)
        number += 3
        print(number, flush=True)
"""


def test_after_sigkill_every_row_of_a_call_that_returned_is_there_and_at_most_one_is_torn(tmp_path):
    path, random_wait = tmp_path / "records.jsonl", random.Random(4)
    acknowledged = {}
    for name in "abcde":
        child = run(FOREVER, path, name)
        assert child.stdout.readline()
        time.sleep(random_wait.uniform(0, 0.2))
        child.send_signal(signal.SIGKILL)
        rest = child.communicate(timeout=60)[0]
        acknowledged[name] = max([3, *(int(word) for word in rest.split("\n")[:-1])])
    append(path, line("new"))
    found, unreadable = read(path)
    assert found[-1] == "new"
    assert unreadable <= 5
    for name, number in acknowledged.items():
        mine = [item for item in found if item[0] == name]
        assert mine == [f"{name}-{index}" for index in range(len(mine))]
        assert len(mine) >= number


def test_a_device_that_is_always_full_gives_an_error_that_counts_nothing_as_written():
    with Appender.open(Path("/dev/full")) as file:
        for _ in range(2):
            with pytest.raises(AppendError, match="0 of 2 rows were appended: No space left on device") as caught:
                file.append([line(0), line(1)])
            assert (caught.value.whole, caught.value.errno) == (0, errno.ENOSPC)


def test_a_writer_waits_for_the_lock_of_another(tmp_path, caplog, monkeypatch):
    path = tmp_path / "records.jsonl"
    asked = threading.Event()
    monkeypatch.setattr(appending, "LOCK_SECONDS", 600.0)

    def asks(descriptor, **options):
        asked.set()
        return lock(descriptor, **options)

    with Appender.open(path) as one, Appender.open(path) as other:
        with one._exclusively(one._open_descriptor()):
            thread = threading.Thread(target=other.append, args=([line(0)],))
            monkeypatch.setattr(appending, "lock", asks)
            thread.start()
            assert asked.wait(60), "it came as far as the lock"
            thread.join(0.2)
            assert thread.is_alive() and path.read_bytes() == b""
        thread.join(60)
        one.append([line(1)])
    assert read(path) == (["0", "1"], 0)
    assert not caplog.records


def test_somebody_who_holds_on_to_the_lock_keeps_no_rows_back(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(appending, "LOCK_SECONDS", 0.05)
    path = tmp_path / "records.jsonl"
    with Appender.open(path) as one, Appender.open(path) as other, one._exclusively(one._open_descriptor()):
        other.append([line(0)])
        other.append([line(1)])
    assert read(path) == (["0", "1"], 0)
    assert len(caplog.records) == 1


def test_without_locks_rows_are_appended_all_the_same_and_it_is_said_once(tmp_path, caplog, monkeypatch):
    """What a file system without locks answers is put in its place: none is at hand."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"torn")
    with Appender.open(path) as file:
        assert file.locked
        file.append([line(0)])
        file.append([line(1)])
        assert not file.locked
    assert read(path) == (["0", "1"], 1)
    assert [record.message for record in caplog.records] == [
        f"{path} cannot be locked: no other process may append to it"
    ]
