"""The writer: it never blocks a run, and what it loses it counts and tells."""

import errno
import gc
import logging
import os
import subprocess
import sys
import textwrap
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from reroll.rollouts.events import GroupEvents

sys.path.insert(0, str(Path(__file__).parent))

from records_cases import CONTEXT, FILTERED, PASSED, make_group, open_writer, rows_of, run_folder, write

from reroll_records.store.layout import scan
from reroll_records.store.liveness import is_held, lock
from reroll_records.writing.config import RecordsSection
from reroll_records.writing.writer import QUEUE_ROWS, StoreWriter


def counts(writer):
    return {name.removeprefix("rollout/records/"): value for name, value in writer.metrics().items()}


def offer(writer, numbers):
    for number in numbers:
        group = make_group(number)
        writer.group_scored(group.observation_id, group, PASSED)


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_group_rows_come_before_their_dispositions(tmp_path):
    writer = open_writer(tmp_path)
    offer(writer, range(4))
    filtered = make_group(4)
    writer.group_scored(filtered.observation_id, filtered, FILTERED)
    writer.group_left("observation-0", "consumed", 1)
    writer.group_left("observation-1", "expired", 3)
    writer.group_left("observation-2", "returned", 0)
    writer.group_left("observation-4", "filtered", 1)
    writer.close(30)
    rows = rows_of(run_folder(tmp_path))
    assert [row["kind"] for row in rows] == ["group"] * 5 + ["disposition"] * 2
    left = [(row["observation_id"], row["disposition"], row["staleness"]) for row in rows[5:]]
    assert left == [("observation-0", "consumed", 1), ("observation-1", "expired", 3)]


def test_a_passed_group_that_was_queued_at_the_end_has_no_disposition(tmp_path):
    writer = open_writer(tmp_path)
    offer(writer, range(1))
    writer.group_left("observation-0", "returned", 0)
    writer.close(30)
    assert [row["kind"] for row in rows_of(run_folder(tmp_path))] == ["group"]


def test_metrics_are_the_five_of_the_specification(tmp_path):
    writer = open_writer(tmp_path)
    offer(writer, range(3))
    writer.close(30)
    assert writer.metrics() == {
        "rollout/records/queued_total": 3,
        "rollout/records/written_total": 3,
        "rollout/records/dropped_total": 0,
        "rollout/records/failed_total": 0,
        "rollout/records/pending": 0,
    }


@pytest.fixture
def stalled(tmp_path, monkeypatch):
    """A writer whose store takes nothing until it is let go."""
    monkeypatch.setattr("reroll_records.store.appending.LOCK_SECONDS", 600.0)
    writer = open_writer(tmp_path)
    descriptor = os.open(run_folder(tmp_path) / "records-first.jsonl", os.O_RDWR)
    assert lock(descriptor)

    def let_go():
        os.close(descriptor)

    yield writer, let_go
    with suppress(OSError):  # a test that failed has not let go
        let_go()


def test_a_full_queue_drops_rows_and_never_blocks(stalled, tmp_path, caplog):
    writer, let_go = stalled
    offered = QUEUE_ROWS + 1000
    offer(writer, range(offered))
    found = counts(writer)
    assert found["written_total"] == 0
    assert found["queued_total"] + found["dropped_total"] == offered
    assert QUEUE_ROWS <= found["pending"] <= QUEUE_ROWS + 256, "the queue, and what the thread has in hand"
    let_go()
    writer.close(60)
    found = counts(writer)
    assert found["written_total"] == found["queued_total"] and not found["pending"]
    assert len(rows_of(run_folder(tmp_path))) == found["written_total"]
    assert f"{found['dropped_total']} dropped" in errors(caplog)[-1]


def test_no_disposition_is_written_of_a_group_that_was_dropped(stalled, tmp_path, monkeypatch):
    monkeypatch.setattr("reroll_records.writing.writer.QUEUE_ROWS", 500)
    writer, let_go = stalled
    offer(writer, range(1000))
    let_go()
    while counts(writer)["pending"]:
        time.sleep(0.01)
    monkeypatch.setattr("reroll_records.writing.writer.QUEUE_ROWS", 4096)
    for number in range(1000):
        writer.group_left(f"observation-{number}", "consumed", 1)
    writer.close(60)
    rows = rows_of(run_folder(tmp_path))
    groups = {row["observation_id"] for row in rows if row["kind"] == "group"}
    assert {row["observation_id"] for row in rows if row["kind"] == "disposition"} == groups


def test_shutdown_waits_for_a_bounded_time_and_says_what_is_lost(stalled, caplog):
    writer, let_go = stalled
    offer(writer, range(10))
    writer.close(0.2)
    assert errors(caplog) == ["records: 10 rows were not written within 0.2 s and are lost"]
    let_go()


def test_a_store_that_cannot_be_opened_is_one_logged_error_and_silence(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    told = []

    class Run:
        def get(self, section):
            return RecordsSection(enabled=True, root=tmp_path / "file" / "store")

    events = GroupEvents([StoreWriter], Run(), told.append)
    events.open(CONTEXT)
    for number in range(5):
        events.dispatched()
        events.scored(make_group(number), PASSED)
        events.left(number, "consumed", 1)
    events.close()
    assert len(errors(caplog)) == 1 and "'records'" in errors(caplog)[0]
    assert len(told) == 1 and "records nothing further" in told[0]


def test_a_lineage_that_is_not_available_is_one_logged_error_and_silence(tmp_path, caplog):
    class Run:
        def get(self, section):
            return RecordsSection(enabled=True, root=tmp_path)

    events = GroupEvents([StoreWriter], Run())
    events.open(replace(CONTEXT, checkpoint={}))
    events.dispatched()
    events.scored(make_group(0), PASSED)
    events.close()
    assert len(errors(caplog)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_has_no_row_costs_no_other(tmp_path, caplog):
    groups = [make_group(0), make_group(1, targets={"math": object()}), make_group(2)]
    folder = write(tmp_path, groups)
    assert [row["source_row"] for row in rows_of(folder)] == [0, 2]
    assert "has no form in JSON" in errors(caplog)[0] and "1 failed" in errors(caplog)[1]


@pytest.mark.parametrize("change", [{"source_row": 2**63}, {"source_row": None}, {"prepared_sample_id": 7}])
def test_a_row_that_no_reader_takes_is_a_failed_row(tmp_path, caplog, change):
    odd = make_group(1)
    odd.task = replace(odd.task, **change)
    folder = write(tmp_path, [make_group(0), odd, make_group(2)])
    assert [row["source_row"] for row in rows_of(folder)] == [0, 2]
    assert scan(tmp_path).attempts[0].closed["failed"] == 1
    assert "has no place in a record" in errors(caplog)[0]


def test_no_disposition_is_written_of_a_group_whose_row_was_lost(tmp_path, monkeypatch):
    writer = open_writer(tmp_path)
    append = writer._appender.append

    def fails(rows):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(writer._appender, "append", fails)
    offer(writer, range(3))
    while counts(writer)["pending"]:
        time.sleep(0.01)
    monkeypatch.setattr(writer._appender, "append", append)
    offer(writer, range(3, 5))
    for number in range(5):
        writer.group_left(f"observation-{number}", "consumed", 1)
    writer.close(30)
    rows = rows_of(run_folder(tmp_path))
    assert [row["kind"] for row in rows] == ["group"] * 2 + ["disposition"] * 2
    found = counts(writer)
    assert (found["written_total"], found["failed_total"], found["pending"]) == (4, 6, 0)


def test_a_full_disk_loses_rows_and_says_so_never_the_run(tmp_path):
    """A limit on file sizes stands for the disk: the write fails in the middle of a row, as on a full one."""
    code = textwrap.dedent(
        """
        import logging, resource, signal, sys, time
        from pathlib import Path
        from records_cases import *
        logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
        writer = open_writer(Path(sys.argv[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        for number in range(100):
            group = make_group(number)
            writer.group_scored(group.observation_id, group, PASSED)
        while writer.pending:
            time.sleep(0.01)
        full = dict(writer.metrics())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        group = make_group(100)
        writer.group_scored(group.observation_id, group, PASSED)
        writer.close(30)
        print(full["rollout/records/written_total"], full["rollout/records/failed_total"], writer.written)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    *told, last = done.stdout.splitlines()
    written, failed, after = map(int, last.split())
    assert 0 < written < 100 and failed == 100 - written
    assert after == written + 1, "once there is room again, rows are written again"
    rows = rows_of(run_folder(tmp_path))
    assert None not in rows and len(rows) == after and rows[-1]["source_row"] == 100
    assert sum("rows are being lost" in line for line in told) == 1
    assert any(f"{failed} failed" in line for line in told)


def test_the_writer_is_seen_alive_until_it_ends(tmp_path):
    writer = open_writer(tmp_path)
    manifest = run_folder(tmp_path) / "manifest-first.json"
    assert is_held(manifest)
    offer(writer, range(2))
    writer.close(30)
    assert not is_held(manifest)
    (attempt,) = scan(tmp_path).attempts
    assert attempt.closed["written"] == 2 and attempt.closed["dropped"] == attempt.closed["failed"] == 0


def test_what_waits_is_lines_and_holds_no_groups(stalled):
    """Responses of many tokens would otherwise fill the memory of a run whose store is slow."""
    writer, let_go = stalled
    group = make_group(0)
    alive = weakref.ref(group)
    writer.group_scored(group.observation_id, group, PASSED)
    del group
    gc.collect()
    assert alive() is None and counts(writer)["pending"] == 1
    let_go()
    writer.close(30)


def test_a_healthy_store_takes_rows_as_fast_as_they_are_made(tmp_path):
    """The pause between writes gathers rows; it is no bound on how many there may be."""
    writer = open_writer(tmp_path)
    offer(writer, range(4000))
    while counts(writer)["pending"]:
        time.sleep(0.01)
    offer(writer, range(4000, 8000))
    writer.close(60)
    assert counts(writer)["written_total"] == 8000 and not counts(writer)["dropped_total"]


def test_whatever_keeps_rows_from_the_store_is_counted(tmp_path, caplog, monkeypatch):
    writer = open_writer(tmp_path)

    def fails(rows):
        raise MemoryError("no room for the block")

    with monkeypatch.context() as patched:
        patched.setattr(writer._appender, "append", fails)
        offer(writer, range(3))
        while counts(writer)["pending"]:
            time.sleep(0.01)
    offer(writer, range(3, 5))
    writer.close(30)
    found = counts(writer)
    assert (found["failed_total"], found["written_total"], found["pending"]) == (3, 2, 0)
    assert "no room for the block" in errors(caplog)[0] and "3 failed" in errors(caplog)[-1]
    assert scan(tmp_path).attempts[0].closed["failed"] == 3


def test_a_run_ends_with_what_was_recorded(tmp_path):
    writer = open_writer(tmp_path)
    offer(writer, range(3))
    writer.close(30)
    assert writer.closing_line() == f"records:  3 rows in {run_folder(tmp_path)}"
