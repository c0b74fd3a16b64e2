"""What a run's folder tells of it, whole or damaged."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import JobState, Launcher, RerollError, hookimpl
from reroll.cli.logs import start_of_last
from reroll.cli.status import one_line, table
from reroll.cli.target import output_of
from reroll.launch.attempts import register_attempt, run_lock
from reroll.launch.folder import (
    LAUNCH,
    RECEIPTS,
    STOP,
    SUPERVISOR_LOCK,
    End,
    Receipt,
    read_end,
    read_receipts,
    write_end,
    write_receipts,
)
from reroll.launch.standing import last_metrics, standing_of
from reroll.launch.supervisor import supervise
from reroll.plugins import load_plugins

PLUGINS = load_plugins()


class Told(Launcher):
    """Says of its job what the job's handle says."""

    name = "told"

    def preview(self, job):
        return ""

    def submit(self, job):
        raise AssertionError("nothing is submitted here")

    def state(self, handle):
        return JobState(**handle)

    def kill(self, handle):
        raise AssertionError("nothing is killed here")


@pytest.fixture(scope="module")
def plugins():
    found = load_plugins()

    class Plugin:
        @hookimpl
        def reroll_launchers(self):
            return [Told]

    found.register(Plugin(), "told", "reroll-told")
    return found


def begin(output):
    register_attempt(output, "a", None, -1, print)


def receipt(handle, starts_before=0):
    return Receipt({"name": "told"}, "2026-01-01T00:00:00+00:00", "host", "user", starts_before, handle)


@pytest.mark.parametrize(
    ("job", "starts", "ended", "end", "stop", "state"),
    [
        ("pending", 0, None, None, False, "pending"),
        ("running", 0, None, None, False, "starting"),
        ("running", 1, "running", None, False, "restarting"),
        ("running", 1, "running", None, True, "stopping"),
        ("running", 1, "completed", None, False, "completed"),
        ("running", 1, "failed", None, False, "restarting"),
        ("ended", 1, "failed", End(1, "launch.retries = 0"), False, "failed"),
        ("ended", 1, "interrupted", End(143, ""), True, "interrupted"),
        ("ended", 1, "running", End(-9, "launch.max_retries = 1"), False, "killed"),
        ("ended", 1, "running", None, False, "killed"),
        ("ended", 0, None, End(1, "refused"), False, "failed"),
        ("ended", 0, None, None, False, "killed"),
        ("unknown", 0, None, None, False, "unknown"),
        ("unknown", 1, "completed", None, False, "completed"),
    ],
)
def test_every_state_follows_from_what_is_there(plugins, tmp_path, job, starts, ended, end, stop, state):
    (tmp_path / LAUNCH).mkdir()
    write_receipts(tmp_path, [receipt({"state": job, "where": "node1"})])
    for _ in range(starts):
        begin(tmp_path)
    if ended:
        (tmp_path / "summary.json").write_text(json.dumps({"ended": ended, "message": "why"}))
    if end:
        write_end(tmp_path, end)
        assert read_end(tmp_path) == end
    if stop:
        (tmp_path / LAUNCH / STOP).touch()
    found = standing_of(tmp_path, plugins)
    assert found.state == state
    assert found.alive == (None if state == "unknown" else job in ("pending", "running"))
    assert found.faults == []
    if end and end.message:
        assert end.message in found.message
    assert state in one_line(found)
    assert any(line.startswith("state") and state in line for line in table(found))


def test_whoever_holds_the_folder_is_alive_whatever_else_is_said(plugins, tmp_path):
    (tmp_path / LAUNCH).mkdir()
    write_receipts(tmp_path, [receipt({"state": "ended"})])
    with run_lock(tmp_path, print):
        assert standing_of(tmp_path, plugins).state == "starting"
        begin(tmp_path)
        found = standing_of(tmp_path, plugins)
    assert (found.state, found.alive) == ("running", True)
    assert found.where.startswith("process ")
    assert standing_of(tmp_path, plugins).alive is False


def test_the_end_of_an_earlier_submission_is_not_the_end_of_this_one(plugins, tmp_path):
    (tmp_path / LAUNCH).mkdir()
    begin(tmp_path)
    (tmp_path / "summary.json").write_text('{"ended": "completed"}')
    write_receipts(tmp_path, [receipt({"state": "ended"}), receipt({"state": "running"}, starts_before=1)])
    assert standing_of(tmp_path, plugins).state == "starting"
    begin(tmp_path)
    (tmp_path / "summary.json").write_text('{"ended": "running"}')
    assert standing_of(tmp_path, plugins).state == "restarting"


def test_a_launcher_that_is_gone_is_told(tmp_path):
    (tmp_path / LAUNCH).mkdir()
    write_receipts(tmp_path, [receipt({"state": "running"})])
    found = standing_of(tmp_path, PLUGINS)
    assert found.state == "unknown"
    assert "'told'" in found.message


NO_JSON = ["", "{", "\0", "[" * 5000]
NO_TABLE = ["[]", "7", '"x"']
DAMAGE = {
    "attempts.json": [*NO_JSON, "7", '"x"', "{}", '[{"number": 1}]'],
    "summary.json": [*NO_JSON, *NO_TABLE],
    "launch/receipts.json": [*NO_JSON, *NO_TABLE, '{"schema": 9}', '{"schema": 1, "receipts": [7]}'],
    "launch/end.json": [*NO_JSON, *NO_TABLE, '{"schema": 9}', '{"schema": 1}'],
    "run.toml": ["{", "[", "a = 1\na = 2"],
}


@pytest.mark.parametrize(("file", "text"), [(file, text) for file, texts in DAMAGE.items() for text in texts])
def test_a_damaged_file_is_a_fault_and_the_rest_is_told(plugins, tmp_path, file, text):
    (tmp_path / LAUNCH).mkdir()
    begin(tmp_path)
    write_receipts(tmp_path, [receipt({"state": "ended"})])
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "rollout/reward": 0.5}\n')
    (tmp_path / file).write_text(text)
    found = standing_of(tmp_path, plugins)
    (fault,) = found.faults
    assert file.rpartition("/")[2] in fault
    assert found.step == 4
    assert "step 4" in one_line(found)
    assert any(line.startswith("fault") for line in table(found))
    json.dumps(found.to_json())


@pytest.mark.parametrize("text", ['{"eval": 7}', '{"eval": {"all": [{}]}}', '{"ended": 7}'])
def test_a_summary_of_another_form_says_less(plugins, tmp_path, text):
    begin(tmp_path)
    (tmp_path / "summary.json").write_text(text)
    found = standing_of(tmp_path, plugins)
    assert (found.evaluations, found.faults) == ({}, [])


def test_a_run_file_means_the_newest_run_of_exactly_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_file = tmp_path / "run.toml"
    run_file.write_text('[run]\nname = "math"\n')
    with pytest.raises(RerollError, match="outputs holds no run 'math'"):
        output_of(run_file)
    for name in ("math-20260101-000000", "math-20260102-000000", "math-hard-20260103-000000", "math-20260104-000000"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
        if "0104" not in name:  # in which nothing was started
            begin(tmp_path / "outputs" / name)
    assert output_of(run_file) == tmp_path / "outputs" / "math-20260102-000000"
    begin_second = tmp_path / "outputs" / "math-20260102-000000-10"
    begin_second.mkdir()
    begin(begin_second)
    assert output_of(run_file) == begin_second
    run_file.write_text('[output]\ndir = "elsewhere"\n')
    assert output_of(run_file) == tmp_path / "elsewhere"
    assert output_of(tmp_path / "outputs") == tmp_path / "outputs"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RerollError, match="holds no run"):
        standing_of(tmp_path, PLUGINS)


def test_receipts_of_another_schema_are_refused(tmp_path):
    (tmp_path / LAUNCH).mkdir()
    (tmp_path / LAUNCH / RECEIPTS).write_text('{"schema": 2, "receipts": []}')
    with pytest.raises(RerollError, match="its schema is 2, this reroll reads 1"):
        read_receipts(tmp_path)


METRICS = st.dictionaries(st.sampled_from(["train/loss", "rollout/reward", "wait/trainer_seconds"]), st.integers(0, 9))


@given(st.lists(METRICS, max_size=6), st.binary(max_size=20).filter(lambda torn: b"\n" not in torn))
def test_the_last_value_of_each_metric_counts_and_a_torn_line_does_not(lines, torn):
    with TemporaryDirectory() as name:
        text = "".join(json.dumps({"step": step, **line}) + "\n" for step, line in enumerate(lines))
        (Path(name) / "metrics.jsonl").write_bytes(text.encode() + torn)
        expected = {}
        for step, line in enumerate(lines):
            expected |= {"step": step, **line}
        assert last_metrics(Path(name)) == expected


@given(
    st.lists(st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))), st.integers(0, 7)
)
def test_the_last_lines_begin_where_they_begin(lines, wanted):
    with TemporaryDirectory() as name:
        path = Path(name) / "log"
        path.write_bytes(b"\n".join(lines))
        with path.open("rb") as file:
            at = start_of_last(file, wanted)
        kept = path.read_bytes().split(b"\n")
        kept = kept[:-1] if kept[-1:] == [b""] else kept
        rest = path.read_bytes()[at:].split(b"\n")
        rest = rest[:-1] if rest[-1:] == [b""] else rest
        assert rest == (kept[-wanted:] if wanted else [])


@pytest.mark.parametrize("value", [None, True, "x", [], [1], {}, 10**400, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["step", "rollout/reward", "rollout/collections", "wait/trainer_seconds"])
def test_a_metric_that_is_no_number_is_left_out(plugins, tmp_path, key, value):
    begin(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"train/loss": 0.5, key: value}) + "\n")
    found = standing_of(tmp_path, plugins)
    assert one_line(found).startswith(found.state)
    assert any("train/loss 0.5" in line for line in table(found))


@pytest.mark.parametrize(
    "key, value", [("backend", []), ("backend", None), ("starts_before", "1"), ("starts_before", None), ("handle", [])]
)
def test_a_receipt_with_values_of_another_kind_is_a_fault(plugins, tmp_path, key, value):
    begin(tmp_path)
    (tmp_path / LAUNCH).mkdir()
    write_receipts(tmp_path, [receipt({"state": "ended"})])
    path = tmp_path / LAUNCH / RECEIPTS
    kept = json.loads(path.read_bytes())
    kept["receipts"][0][key] = value
    path.write_text(json.dumps(kept))
    (fault,) = standing_of(tmp_path, plugins).faults
    assert key in fault


def test_a_supervisor_that_no_receipt_knows_is_alive(plugins, tmp_path):
    begin(tmp_path)
    (tmp_path / LAUNCH).mkdir()
    write_receipts(tmp_path, [receipt(None)])
    with run_lock(tmp_path / LAUNCH, pytest.fail, file=SUPERVISOR_LOCK):
        found = standing_of(tmp_path, plugins)
        assert (found.state, found.alive) == ("restarting", True)
        assert supervise(tmp_path) == 1  # the second one leaves the folder as it is
    assert read_end(tmp_path) is None
    assert not standing_of(tmp_path, plugins).alive


def test_a_supervisor_without_a_whole_run_file_says_so(tmp_path):
    (tmp_path / LAUNCH).mkdir()
    (tmp_path / LAUNCH / "run.toml").write_text("[launch")
    assert supervise(tmp_path) == 2
    end = read_end(tmp_path)
    assert end.exit_code == 2 and "cannot be read" in end.message
