"""Starts of a run in its folder: counted, bounded, one at a time."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.launch.attempts import AttemptsError, read_attempts, register_attempt, run_lock


def start(output, name="a", from_step=None, max_retries=-1, warned=None):
    return register_attempt(output, name, from_step, max_retries, (warned if warned is not None else []).append)


def test_every_start_is_kept(tmp_path):
    assert read_attempts(tmp_path) == []
    made = [start(tmp_path, name, step) for name, step in (("a", None), ("b", 4), ("c", 4))]
    assert read_attempts(tmp_path) == made
    assert [(item.number, item.attempt, item.from_step, item.pid) for item in made] == [
        (1, "a", None, os.getpid()),
        (2, "b", 4, os.getpid()),
        (3, "c", 4, os.getpid()),
    ]
    assert os.listdir(tmp_path) == ["attempts.json"]


@given(st.integers(1, 4), st.integers(0, 4))
def test_a_run_starts_as_often_as_it_may(max_retries, tries):
    with TemporaryDirectory() as name:
        output = Path(name)
        for number in range(tries + 1):
            before = (output / "attempts.json").read_bytes() if number else None
            if number < max_retries:
                assert start(output, max_retries=max_retries).number == number + 1
                continue
            times = f"{max_retries} time" + "s" * (max_retries > 1)
            message = rf"launch.max_retries = {max_retries}: .* was started {times},.* another output.dir"
            with pytest.raises(AttemptsError, match=message):
                start(output, max_retries=max_retries)
            assert (output / "attempts.json").read_bytes() == before
        assert start(output, max_retries=-1).number == min(tries + 1, max_retries) + 1


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", '[{"number": 1}]', "[7]", '[{"number": "1", "attempt": "a", "started": "", "pid": 1, "host": "h", '
     '"from_step": null}]', "\0"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_kept_and_said(tmp_path, text):
    for number in range(2):
        (tmp_path / "attempts.json").write_text(text)
        with pytest.raises(AttemptsError, match="attempts.json cannot be read: "):
            read_attempts(tmp_path)
        warned = []
        assert start(tmp_path, max_retries=1, warned=warned).number == 1
        aside = "attempts.json.unreadable" + ("-2" if number else "")
        assert (tmp_path / aside).read_text() == text
        (warning,) = warned
        assert f"it is kept as {aside}, and starts are counted anew" in warning
    assert len(read_attempts(tmp_path)) == 1


@given(st.integers(1, 400), st.binary(max_size=3))
def test_no_damage_loses_a_start_silently(at, damage):
    with TemporaryDirectory() as name:
        output, warned = Path(name), []
        for letter in "ab":
            start(output, letter)
        path = output / "attempts.json"
        data = path.read_bytes()
        damaged = data[: min(at, len(data) - 2)] + damage
        path.write_bytes(damaged)
        number = start(output, "c", warned=warned).number
        assert (number == 1) == bool(warned) == (output / "attempts.json.unreadable").exists()
        if warned:
            assert (output / "attempts.json.unreadable").read_bytes() == damaged
        assert read_attempts(output)[-1].attempt == "c"


def test_a_start_that_was_killed_while_it_wrote_changes_nothing(tmp_path, monkeypatch):
    start(tmp_path)

    def killed(path, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, "b")
    monkeypatch.undo()
    assert [item.attempt for item in read_attempts(tmp_path)] == ["a"]
    assert start(tmp_path, "c").number == 2
    assert os.listdir(tmp_path) == ["attempts.json"]


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from reroll.launch.attempts import AttemptsError, run_lock
try:
    with run_lock(Path(sys.argv[1]), print):
        child = subprocess.Popen(["sleep", "30"]) if len(sys.argv) > 2 else None
        print("held", child.pid if child else 0, flush=True)
        sys.stdin.readline()
except AttemptsError as error:
    print("refused", error, flush=True)
"""


def holder(output, *more):
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(output), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ended(process):
    process.communicate()


def test_of_two_starts_at_once_one_is_refused(tmp_path):
    processes = [holder(tmp_path) for _ in range(2)]
    said = [process.stdout.readline() for process in processes]
    assert sorted(line.split()[0] for line in said) == ["held", "refused"]
    (refused,) = [line for line in said if line.startswith("refused")]
    winner = processes[0 if said[0].startswith("held") else 1]
    assert f"output.dir: another run is using {tmp_path} (process {winner.pid} on " in refused
    assert "give another folder" in refused
    for process in processes:
        ended(process)


def test_the_folder_of_a_dead_run_is_free_at_once_even_while_its_workers_live(tmp_path):
    process = holder(tmp_path, "child")
    _, child = process.stdout.readline().split()
    try:
        with pytest.raises(AttemptsError, match="another run is using"), run_lock(tmp_path, print):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(int(child), 0)
        with run_lock(tmp_path, print):
            assert f"process {os.getpid()} on " in (tmp_path / "run.lock").read_text()
        with run_lock(tmp_path, print):
            pass
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    warned = []
    with run_lock(tmp_path, warned.append):
        pass
    (warning,) = warned
    assert "file system without locks (No locks available): nothing keeps a second start" in warning


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with (
        pytest.raises(AttemptsError, match=r"output.dir: .*nothing/run.lock cannot be opened: No such file"),
        run_lock(tmp_path / "nothing", print),
    ):
        pass


def test_the_file_is_a_list_for_other_programs(tmp_path):
    start(tmp_path, "a", 3)
    (item,) = json.loads((tmp_path / "attempts.json").read_text())
    assert set(item) == {"number", "attempt", "started", "pid", "host", "from_step"}
    assert item["started"].endswith("+00:00")
