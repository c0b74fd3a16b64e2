"""Clean-up of results folders, also where it is killed."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.generation.cleanup import clean
from reroll.generation.corpus import Choice, export
from reroll.generation.holdings import Holdings
from reroll.generation.merging import Folder, merge, results_folders
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, TRACE, read_journal, read_trace, traces_path
from reroll.launch.attempts import AttemptsError, run_lock
from reroll.traces.names import MARKER
from reroll.traces.saved import mark_complete, read_rollouts

sys.path.insert(0, str(Path(__file__).parent))

from results_folders import Results, entry_of, protocol_of, trace_of

PROTOCOL = protocol_of(n_trials=2)
KEPT_FILES = {"generation.json", "journal.jsonl", "run.toml", "run.lock", "attempts.json", "rollouts"}


def nothing_said(text):
    raise AssertionError(text)


def messy(folder, layout):
    """A folder in which something of every kind is not needed, or not where it should be."""
    results = Results(folder, PROTOCOL, layout)
    for position in (3, 0, 1):
        entry = entry_of(PROTOCOL, position, 0, "error", tokens=1)
        results.add(entry, trace_of(entry, answer="x" * 500))
    results.add(entry_of(PROTOCOL, 0, 0))
    results.add(entry_of(PROTOCOL, 0, 1, "failed"))
    results.add(entry_of(PROTOCOL, 1, 0, "error", tokens=2))
    results.add(entry_of(PROTOCOL, 2, 1, "failed"))
    results.add(entry_of(PROTOCOL, 5, 0, "skipped"))
    results.add(entry_of(PROTOCOL, 4, 7))  # beyond the trials that are asked for now
    results.add(entry_of(PROTOCOL, 3, 0))
    results.add(entry_of(PROTOCOL, 4, 1), journal=False)
    (folder / "attempts.json").write_text("[]\n")
    (folder / "logs").mkdir()
    (folder / "logs/run.log").write_text("much\n" * 100)
    (folder / "index.parquet.partial").write_text("half")
    if layout == "journal":
        with traces_path(folder).open("ab") as file:
            file.write(b'{"schema": 1, "torn')
        mark_complete(folder, 0, 10)
        (traces_path(folder).parent / "train_rollouts.jsonl.partial").write_text("half")
    else:
        (folder / "tasks/main-0/0/trace.json.partial").write_text("half")
    return results


STANDING = {
    (0, 0): "passed", (0, 1): "failed", (1, 0): "error", (2, 1): "failed", (3, 0): "passed", (4, 1): "passed",
    (4, 7): "passed", (5, -1): "skipped",
}  # fmt: skip


def cleaned(folder, drop=None, dry_run=False):
    return clean(Folder(folder, PROTOCOL), drop, dry_run, nothing_said)


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def space(folder):
    return sum(len(found) for name, found in content(folder).items() if name != "run.lock")


def check_whole(folder, unlisted=(4, 1)):
    """Whatever was interrupted, each attempt that counts has its entry, and what an entry names is there."""
    found = {key_of(item): item for item in journal_of(folder)}
    assert {key: item.outcome for key, item in found.items()}.items() >= {
        key: outcome for key, outcome in STANDING.items() if key != unlisted
    }.items()
    for entry in journal_of(folder):
        if entry.place is not None:
            assert read_trace(folder, entry)["info"]["reroll"]["generation"]["position"] == entry.position
    marker = traces_path(folder).parent / MARKER
    if marker.exists():
        assert json.loads(marker.read_bytes())["traces"] == traces_path(folder).read_bytes().count(b"\n")


def journal_of(folder):
    return list(read_journal(folder, nothing_said))


def key_of(entry):
    return entry.position, -1 if entry.outcome == "skipped" else entry.trial


def held(folder):
    return {key_of(item): item for item in Holdings(folder, nothing_said).entries()}


LAYOUTS = pytest.mark.parametrize("layout", ["journal", "tree"])


@LAYOUTS
@pytest.mark.parametrize("drop", [None, "all", "failed", "errors"])
def test_what_a_resume_needs_stays(tmp_path, layout, drop):
    folder = messy(tmp_path / "results", layout).folder
    before = held(folder)
    assert {key: item.outcome for key, item in before.items()} == STANDING
    size = space(folder)
    told = cleaned(folder, drop, dry_run=True)
    assert space(folder) == size
    freed = cleaned(folder, drop)
    assert (str(freed), freed.traces) == (str(told), told.traces)
    dropped = {"all": set(STANDING.values()), "failed": {"failed"}, "errors": {"error"}, None: set()}[drop]
    entries = journal_of(folder)
    assert [item.stamp() for item in entries] == [before[key].stamp() for key in sorted(before)]
    for entry in entries:
        if entry.outcome in dropped or entry.outcome == "skipped":
            assert entry.place is None
        else:
            saved = read_trace(folder, entry)
            assert saved["info"]["reroll"]["generation"] == entry.stamp()
    assert {path.name for path in folder.iterdir()} <= KEPT_FILES | {"tasks"}
    assert not list(folder.rglob("*.partial"))
    kept = [entry for entry in entries if entry.place is not None]
    if layout == "journal":
        assert len(list(read_rollouts(traces_path(folder).parent))) == len(kept)
        assert f'"traces": {len(kept)}' in (traces_path(folder).parent / MARKER).read_text()
    else:
        assert len(list((folder / "tasks").glob(f"*/*/{TRACE}"))) == len(kept)
    unlisted = 0 if drop == "all" else len(entry_of(PROTOCOL, 4, 1).line())
    assert abs(size - space(folder) - freed.total) <= unlisted + 100


@LAYOUTS
def test_a_second_clean_up_has_nothing_to_do(tmp_path, layout):
    folder = messy(tmp_path / "results", layout).folder
    cleaned(folder)
    before = content(folder)
    assert (cleaned(folder).total, cleaned(folder).traces) == (0, 0)
    assert content(folder) == before


def killed_at(folder, step, drop):
    """Runs the clean-up in a process that is killed at its `step`-th call that changes the disk. Whether it was."""
    process = os.fork()
    if process == 0:
        left = [step]

        def wrapped(call):
            def counting(*given, **named):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*given, **named)

            return counting

        code = 1
        try:
            for name in ("fsync", "rename", "unlink", "rmdir", "truncate"):
                setattr(os, name, wrapped(getattr(os, name)))
            cleaned(folder, drop)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@LAYOUTS
@pytest.mark.parametrize("drop", [None, "failed"])
def test_killed_at_any_step_it_leaves_what_can_go_on(tmp_path, layout, drop):
    origin = messy(tmp_path / "origin", layout).folder
    reference = tmp_path / "reference"
    shutil.copytree(origin, reference)
    cleaned(reference, drop)
    expected, step, interrupted = content(reference), 0, True
    expected.pop("run.lock")
    while interrupted:
        folder = tmp_path / f"killed-{step}"
        shutil.copytree(origin, folder)
        interrupted = killed_at(folder, step, drop)
        check_whole(folder)
        kept = {key: item.stamp() for key, item in held(folder).items()}
        assert kept == {key: item.stamp() for key, item in held(reference).items()}
        assert all(item.place is not None or item.outcome in ("skipped", drop) for item in held(folder).values())
        go_on(folder, layout)
        cleaned(folder, drop)
        found = content(folder)
        found.pop("run.lock")
        assert found.keys() - expected.keys() <= {f"rollouts/step_0/{MARKER}"}
        assert found.get("rollouts/step_0/train_rollouts.jsonl") == expected.get("rollouts/step_0/train_rollouts.jsonl")
        assert found[JOURNAL] == expected[JOURNAL]
        step += 1
    assert step > 8


def go_on(folder, layout):
    """The rest of the test's folder as a start would see it: the corpus can be read."""
    done = export([Folder(folder, PROTOCOL)], folder.with_suffix(".jsonl"), Choice("judged"), nothing_said)
    assert done.unreadable == 0


@LAYOUTS
def test_a_run_goes_on_in_a_cleaned_folder(tmp_path, layout):
    folder = messy(tmp_path / "results", layout).folder
    cleaned(folder, "failed")
    results = Results.__new__(Results)
    results.folder, results.protocol, results.layout = folder, PROTOCOL, layout
    added = results.add(entry_of(PROTOCOL, 1, 0, "failed"))
    assert read_trace(folder, added)["info"]["reroll"]["generation"] == added.stamp()
    tally = merge([Folder(folder, PROTOCOL)], lambda text: None).tally
    assert [(task.position, task.n_pass, task.n_fail, task.n_error) for task in tally.tasks()] == [
        (0, 1, 1, 0), (1, 0, 1, 0), (2, 0, 1, 0), (3, 1, 0, 0), (4, 1, 0, 0), (5, 0, 0, 0),
    ]  # fmt: skip


OUTCOMES = st.sampled_from(["passed", "failed", "error"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), OUTCOMES, st.booleans()), max_size=14),
    st.sampled_from(["journal", "tree"]),
    st.sampled_from([None, "all", "failed", "errors"]),
)
def test_the_summary_is_the_same_before_and_after(tmp_path_factory, attempts, layout, drop):
    folder = tmp_path_factory.mktemp("results") / "one"
    results = Results(folder, PROTOCOL, layout)
    judged = set()
    for number, (position, trial, outcome, told) in enumerate(attempts):
        # in the layout `tree` one attempt's traces take each other's place
        if layout == "journal" or (position, trial) not in judged:
            results.add(entry_of(PROTOCOL, position, trial, outcome, tokens=number), journal=told or layout == "tree")
        judged |= {(position, trial)} if outcome != "error" else set()
    before = held(folder)
    cleaned(folder, drop)
    after = held(folder)
    assert {key: item.stamp() for key, item in before.items()} == {key: item.stamp() for key, item in after.items()}
    assert cleaned(folder, drop).total == 0
    for item in journal_of(folder):
        assert item.place is None or read_trace(folder, item)["info"]["reroll"]["generation"] == item.stamp()


def test_a_folder_that_a_run_holds_is_left_alone(tmp_path):
    folder = messy(tmp_path / "results", "journal").folder
    before = space(folder)
    with run_lock(folder, nothing_said), pytest.raises(AttemptsError, match="another run is using"):
        cleaned(folder)
    assert space(folder) == before


def test_a_journal_that_does_not_fit_the_traces_is_left_to_the_next_start(tmp_path):
    folder = messy(tmp_path / "results", "journal").folder
    with (folder / JOURNAL).open("ab") as file:
        file.write(entry_of(PROTOCOL, 2, 0, place=(5, 40)).line())
    before = content(folder)
    with pytest.raises(ResultsError, match="names a trace at byte 5 of .*start the generation again"):
        cleaned(folder)
    assert {**content(folder), "run.lock": b""} == {**before, "run.lock": b""}


def test_without_a_journal_the_traces_make_one(tmp_path):
    folder = messy(tmp_path / "results", "journal").folder
    (folder / JOURNAL).unlink()
    cleaned(folder)
    check_whole(folder, unlisted=(5, -1))


def test_logs_that_lie_elsewhere_are_left_alone(tmp_path):
    folder = messy(tmp_path / "results", "journal").folder
    shutil.move(folder / "logs", tmp_path / "elsewhere")
    (folder / "logs").symlink_to(tmp_path / "elsewhere")
    cleaned(folder)
    assert (folder / "logs/run.log").exists()


def test_a_place_out_of_the_folder_is_never_touched(tmp_path):
    folder = messy(tmp_path / "results", "tree").folder
    other = tmp_path / "other/0"
    other.mkdir(parents=True)
    (other / TRACE).write_text("{}")
    with (folder / JOURNAL).open("ab") as file:
        file.write(entry_of(PROTOCOL, 2, 0, place="../other/0").line())
    cleaned(folder, "all")
    assert (other / TRACE).exists()


def test_the_folder_is_known_by_what_it_was_measured_with(tmp_path):
    assert results_folders([messy(tmp_path / "results", "journal").folder])[0].protocol == PROTOCOL
