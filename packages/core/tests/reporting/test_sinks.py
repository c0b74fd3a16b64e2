"""Sinks of metrics and of records: one that fails is left out, the others get everything, in order."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from contexts import CONTEXT

from reroll.api import CheckpointError, Decision, Group, RecordWriter, RenderedPrompt, Task, Trace, Tracker
from reroll.reporting.trackers import JsonlTracker, Trackers
from reroll.rollouts.events import GroupEvents

RUN = object()
METHODS = ["open", "group_scored", "group_left", "metrics", "close"]


class Listener(Tracker):
    name = "listener"

    def __init__(self, fails=None):
        super().__init__()
        self.fails = fails
        self.heard = []

    def hear(self, method, *arguments):
        self.heard.append((method, *arguments))
        if method == self.fails:
            raise OSError("the sink is full")

    def open(self, context):
        self.hear("open", context)

    def log(self, step, metrics):
        self.hear("log", step, dict(metrics))

    def close(self):
        self.hear("close")


def everything(trackers):
    trackers.open(CONTEXT)
    trackers.log(1, {"train/loss": 0.5})
    trackers.log(2, {"train/loss": 0.25})
    trackers.close()


ALL_HEARD = [
    ("open", CONTEXT),
    ("log", 1, {"train/loss": 0.5}),
    ("log", 2, {"train/loss": 0.25}),
    ("close",),
]


@pytest.mark.parametrize("method", ["open", "log", "close"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_tracker_that_fails_hears_nothing_further_and_the_others_everything(method, position, caplog):
    listeners = [Listener(), Listener()]
    broken = Listener(fails=method)
    listeners.insert(position, broken)
    with caplog.at_level(logging.ERROR, "reroll"):
        everything(Trackers(listeners))
    first_failure = [event[0] for event in ALL_HEARD].index(method)
    assert broken.heard == ALL_HEARD[: first_failure + 1]
    assert [item.heard for item in listeners if item is not broken] == [ALL_HEARD, ALL_HEARD]
    (told,) = caplog.records
    assert "'listener'" in told.getMessage()
    assert "the sink is full" in str(told.exc_info[1])


def test_two_trackers_that_fail_at_once_are_both_left_out():
    broken = [Listener(fails="open"), Listener(fails="open")]
    listener = Listener()
    everything(Trackers([*broken, listener]))
    assert [len(item.heard) for item in broken] == [1, 1]
    assert listener.heard == ALL_HEARD


def test_jsonl_writes_one_line_an_event_with_step_time_and_metrics(tmp_path):
    tracker = JsonlTracker()
    tracker.open(SimpleNamespace(output=tmp_path))
    tracker.log(1, {"train/loss": 0.5, "rollout/groups": 4})
    path = tmp_path / "metrics.jsonl"
    assert len(path.read_text("utf-8").splitlines()) == 1, "a line can be read while the run goes on"
    tracker.log(3, {"train/loss": 0.25})
    tracker.close()
    first, second = map(json.loads, path.read_text("utf-8").splitlines())
    assert first.pop("time") <= second.pop("time")
    assert first == {"step": 1, "train/loss": 0.5, "rollout/groups": 4}
    assert second == {"step": 3, "train/loss": 0.25}


def test_jsonl_goes_on_after_the_checkpoint_and_keeps_what_is_beyond_it_apart(tmp_path):
    """Steps 1 to 3, a torn line, and a start from the checkpoint of step 2; then one from no checkpoint at all."""
    for fresh, begins, steps in ((True, 0, (1, 2, 3)), (False, 2, (3,)), (True, 0, (1,))):
        tracker = JsonlTracker()
        tracker.open(SimpleNamespace(output=tmp_path, fresh=fresh, start_version=begins, start_rollout_id=begins))
        for step in steps:
            tracker.log(step, {"begun at": begins})
        tracker.close()
        lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == [*range(1, begins + 1), *steps]
        if len(steps) == 3:
            with (tmp_path / "metrics.jsonl").open("a") as file:
                file.write('{"step": 2, "torn')
    superseded = (tmp_path / "metrics.superseded.jsonl").read_text("utf-8")
    assert '"torn' in superseded
    assert superseded.count("begun at") == 4


def test_jsonl_that_was_never_opened_can_be_closed(tmp_path):
    JsonlTracker().close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_the_metrics_and_nothing_else(tmp_path):
    listener = Listener()
    trackers = Trackers([JsonlTracker(), listener])
    context = replace(CONTEXT, output=tmp_path / "nowhere")
    trackers.open(context)
    trackers.log(1, {"train/loss": 0.5})
    trackers.close()
    assert [event[0] for event in listener.heard] == ["open", "log", "close"]


def writer(name, heard, fails=None, reports=None, asks=True):
    """A record writer whose instance notes what it hears in `heard`."""

    def hear(method, *arguments):
        heard.append((method, *arguments))
        if method == fails:
            raise RuntimeError("the disk is full")

    class Writer(RecordWriter):
        @classmethod
        def from_run(cls, run):
            assert run is RUN
            hear("from_run")
            return cls() if asks else None

        def open(self, context):
            hear("open", context)

        def group_scored(self, observation_id, group, decision):
            hear("group_scored", observation_id, group.group_index, decision.outcome)

        def group_left(self, observation_id, disposition, staleness):
            hear("group_left", observation_id, disposition, staleness)

        def metrics(self):
            hear("metrics")
            return reports or {}

        def close(self, timeout):
            hear("close", timeout)

    Writer.name = name
    return Writer


def group(index):
    task = Task("a question", {"v": "1"}, "set", index, str(index))
    return Group(
        observation_id=f"observation-{index}",
        group_index=index,
        attempt=0,
        rollout_id=0,
        task=task,
        rendered=RenderedPrompt("a question", (1, 2), "", ""),
        traces=[Trace(id=f"trace-{index}", task=task)],
        seeds=[0],
        verifier_weights={"v": 1.0},
        rewards=[1.0],
    )


def all_events(*writers):
    """One group that is consumed, one that is filtered; gives the events, and the metrics in between."""
    events = GroupEvents(writers, RUN)
    events.open("context")
    for _ in range(2):
        events.dispatched()
    events.scored(group(0), Decision("passed"))
    events.scored(group(1), Decision("filtered", "too easy"))
    events.left(0, "consumed", staleness=2)
    events.left(1, "filtered")
    metrics = events.metrics()
    events.close(timeout=1.5)
    return events, metrics


ALL_EVENTS = [
    ("from_run",),
    ("open", "context"),
    ("group_scored", "observation-0", 0, "passed"),
    ("group_scored", "observation-1", 1, "filtered"),
    ("group_left", "observation-0", "consumed", 2),
    ("group_left", "observation-1", "filtered", 0),
    ("metrics",),
    ("close", 1.5),
]


@pytest.mark.parametrize("method", ["from_run", *METHODS])
@pytest.mark.parametrize("first", [True, False])
def test_a_writer_that_fails_hears_nothing_further_and_the_others_everything(method, first, caplog):
    heard, broken = [], []
    good = writer("good", heard, reports={"records/written": 2.0})
    bad = writer("bad", broken, fails=method, reports={"records/lost": 1.0})
    with caplog.at_level(logging.ERROR, "reroll"):
        events, metrics = all_events(*((bad, good) if first else (good, bad)))
    first_failure = [event[0] for event in ALL_EVENTS].index(method)
    assert broken == ALL_EVENTS[: first_failure + 1]
    assert heard == ALL_EVENTS
    assert metrics["records/written"] == 2.0
    assert ("records/lost" in metrics) is (method == "close"), "only what still works when it is asked reports"
    (told,) = caplog.records
    assert "'bad'" in told.getMessage()
    assert "the disk is full" in str(told.exc_info[1])
    assert events.ledger.summary()["consumed"] == 1, "the ledger is kept whatever the writers do"


def test_a_writer_that_the_run_does_not_ask_for_hears_nothing(caplog):
    heard, unasked = [], []
    all_events(writer("good", heard), writer("unasked", unasked, asks=False))
    assert unasked == [("from_run",)]
    assert heard == ALL_EVENTS
    assert not caplog.records


def test_the_metrics_of_all_writers_come_together():
    _, metrics = all_events(writer("a", [], reports={"a/x": 1.0}), writer("b", [], reports={"b/x": 2.0}))
    assert metrics == {"a/x": 1.0, "b/x": 2.0}


def test_the_ledger_follows_every_dispatch_and_ending():
    events = GroupEvents([], RUN)
    assert [events.dispatched() for _ in range(3)] == [0, 1, 2]
    events.scored(group(1), Decision("passed"))
    counts = events.ledger.summary()
    assert (counts["dispatched"], counts["queued"], counts["in_flight"]) == (3, 1, 2)
    events.left(1, "expired", staleness=4)
    assert events.ledger.unfinished() == [0, 2]
    assert events.return_rest() == 2
    counts = events.ledger.summary()
    assert (counts["expired"], counts["returned"], counts["in_flight"], counts["queued"]) == (1, 2, 0, 0)


def test_writers_hear_the_ending_only_of_groups_that_they_heard_of():
    heard = []
    events = GroupEvents([writer("good", heard)], RUN)
    for _ in range(2):
        events.dispatched()
    events.scored(group(0), Decision("passed"))
    events.return_rest()
    assert heard == [
        ("from_run",),
        ("group_scored", "observation-0", 0, "passed"),
        ("group_left", "observation-0", "returned", 0),
    ]


def test_an_ending_without_a_dispatch_is_refused_before_any_writer_hears_of_it():
    heard = []
    events = GroupEvents([writer("good", heard)], RUN)
    with pytest.raises(AssertionError, match="group 0 ended before"):
        events.left(0, "consumed")
    assert heard == [("from_run",)]


def test_reasons_are_counted_for_what_did_not_pass():
    events = GroupEvents([], RUN)
    for index, decision in enumerate(
        [
            Decision("passed"),
            Decision("passed", "liked it"),
            Decision("filtered", "zero_variance_1"),
            Decision("filtered", "zero_variance_1"),
            Decision("aborted", "0 of 8 responses were scored"),
        ]
    ):
        events.dispatched()
        events.scored(group(index), decision)
    assert events.filtered == {"zero_variance_1": 2, "0 of 8 responses were scored": 1}


def test_restored_events_go_on_counting():
    before, _ = all_events()
    before.retried = 3
    before.dispatched()
    after = GroupEvents([], RUN)
    after.restore(json.loads(json.dumps(before.state())))
    assert (after.filtered, after.retried) == ({"too easy": 1}, 3)
    assert after.ledger.summary() == before.ledger.summary() | {"in_flight": 0, "returned": 1}
    assert after.dispatched() == 3
    after.scored(group(3), Decision("filtered", "too easy"))
    assert after.filtered == {"too easy": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": None}, "events.schema: None"),
        ({"retried": "3"}, "events.retried: '3'"),
        ({"filtered": []}, r"events.filtered: \[\] is no table"),
        ({"ledger": {}}, "ledger: the fields aborted, "),
    ],
)
def test_a_state_of_events_that_does_not_fit_changes_nothing(changes, message):
    events, fresh = all_events()[0], GroupEvents([], RUN)
    with pytest.raises(CheckpointError, match=message):
        fresh.restore(events.state() | changes)
    assert (fresh.ledger.dispatched, fresh.filtered, fresh.retried) == (0, {}, 0)
