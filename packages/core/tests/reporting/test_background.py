"""Calls that wait in a thread: in order, and what fails there is told by the next one."""

import threading

import pytest
from contexts import CONTEXT

from reroll.api import RerollError
from reroll.reporting import background
from reroll.reporting.background import BackgroundTracker
from reroll.reporting.trackers import Trackers


class Slow(BackgroundTracker):
    """Does nothing before `go` is set; the call with the name `fails` fails."""

    name = "slow"

    def __init__(self, fails=None):
        super().__init__()
        self.go = threading.Event()
        self.heard = []
        self.fails = fails

    def hear(self, *call):
        self.go.wait()
        self.heard.append(call)
        if call[0] == self.fails:
            raise OSError("no network")

    def begin(self, context):
        self.hear("begin", context)

    def write(self, step, metrics):
        self.hear("write", step, metrics)

    def end(self):
        self.hear("end")


def test_nobody_waits_for_the_back_end_before_the_end_of_the_run():
    tracker = Slow()
    tracker.open("context")
    tracker.log(1, {"a": 1.0})
    tracker.log(2, {"a": 2.0})
    assert tracker.heard == []
    tracker.go.set()
    tracker.close()
    assert tracker.heard == [("begin", "context"), ("write", 1, {"a": 1.0}), ("write", 2, {"a": 2.0}), ("end",)]


@pytest.mark.parametrize("fails", ["begin", "write", "end"])
def test_a_failure_is_told_once(fails):
    tracker, told = Slow(fails), []
    tracker.go.set()
    trackers = Trackers([tracker], told.append)
    trackers.open(CONTEXT)
    trackers.log(1, {})
    trackers.close()
    trackers.close()
    assert told == ["tracker 'slow' gets no further metrics: OSError: no network"]
    assert tracker.heard[-1][0] == fails


def test_an_end_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(background, "CLOSE_SECONDS", 0.01)
    tracker = Slow()
    tracker.open("context")
    with pytest.raises(RerollError, match="not finished within"):
        tracker.close()
    tracker.go.set()


def test_calls_that_are_never_taken_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(background, "MOST_PENDING", 3)
    tracker = Slow()
    tracker.open("context")
    with pytest.raises(RerollError, match="has not taken the last 3 calls"):
        for step in range(10):
            tracker.log(step, {})
    tracker.go.set()


def test_one_that_was_never_opened_can_be_closed():
    tracker = Slow()
    tracker.close()
    assert tracker.heard == [], "what was never begun is not ended"
