"""Locks that say who is at work on a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reroll_records.store.liveness import claim, hold, is_held, lock

SOURCES = Path(__file__).parents[1] / "src"
HOLDER = """
import sys, time
from pathlib import Path
from reroll_records.store.liveness import hold
held = hold(Path(sys.argv[1]))
print(held.locked, flush=True)
time.sleep(600)
"""


def test_a_hold_is_seen_until_it_is_closed(tmp_path):
    path = tmp_path / "manifest.json"
    assert not is_held(path)
    with pytest.raises(FileNotFoundError):
        hold(path)
    path.write_bytes(b"{}")
    assert not is_held(path)
    with hold(path) as one:
        assert one.locked and is_held(path)
        with hold(path):
            assert is_held(path)
        assert is_held(path)
    assert not is_held(path)
    one.close()
    assert path.read_bytes() == b"{}"


def test_a_hold_ends_with_its_process_however_that_ends(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(b"{}")
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "True\n"
        assert is_held(path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert not is_held(path)


def test_a_lock_that_another_has_is_not_waited_for_where_that_is_said(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    one, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    assert lock(one)
    with pytest.raises(BlockingIOError):
        lock(other, wait=False)
    os.close(one)
    assert lock(other, wait=False)
    os.close(other)


def test_a_file_that_is_opened_in_a_way_that_cannot_be_locked_is_not_locked_and_no_error(tmp_path):
    descriptor = os.open(tmp_path, os.O_PATH)
    assert lock(descriptor) is False
    os.close(descriptor)


def test_a_claim_is_refused_while_another_holds_the_file_and_the_other_way_round(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(b"{}")
    with hold(path), pytest.raises(BlockingIOError):
        claim(path)
    with claim(path) as found:
        assert found.locked and is_held(path)
        with pytest.raises(BlockingIOError):
            claim(path)
    with hold(path) as found:
        assert found.locked
