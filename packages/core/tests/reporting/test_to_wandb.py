"""Which W&B run a start goes on in, and from which row, whatever the server can do."""

import json
from types import SimpleNamespace

import pytest

from reroll.reporting.to_wandb import WandbConfig, WandbTracker

BACK = {"resume_from": "run?_step=2"}
SAME = {"id": "run", "resume": "allow"}


class Rows:
    """Stands for a run in W&B."""

    def __init__(self):
        self.logged = []
        self.axes = {}

    def define_metric(self, name, step_metric=None):
        assert name not in self.axes and "*" not in name
        self.axes[name] = step_metric

    def log(self, values, step):
        self.logged.append((step, values["step"]))

    def finish(self):
        pass


class Tracker(WandbTracker):
    """Its server refuses what `refuses` says of mode and identity."""

    def __init__(self, mode, refuses, always_use_train_step=True):
        super().__init__(WandbConfig(wandb_mode=mode, wandb_always_use_train_step=always_use_train_step))
        self.refuses = refuses

    def _init(self, context, folder, mode=None, **identity):
        self.began = (mode or self.config.wandb_mode, identity)
        if self.refuses(*self.began):
            raise OSError("refused")
        self.rows = Rows()
        return self.rows


def tracked(output, steps, mode="offline", refuses=lambda mode, identity: False, **context):
    tracker = Tracker(mode, refuses)
    values = {"output": output, "fresh": True, "run_id": "run", "attempt": "1"} | context
    tracker.open(SimpleNamespace(**values))
    for step in steps:
        tracker.log(step, {"rollout/collections": step})
    tracker.close()
    return tracker


def never(mode, identity):
    return False


@pytest.mark.parametrize(
    ("mode", "refuses", "began", "first"),
    [
        ("offline", never, ("offline", BACK), 3),
        ("online", never, ("online", BACK), 3),
        ("online", lambda mode, identity: "resume_from" in identity, ("online", SAME), 5),
        ("online", lambda mode, identity: mode == "online", ("offline", BACK), 3),
    ],
    ids=["offline", "online", "no rewind", "no server"],
)
def test_rows_beyond_the_checkpoint_are_taken_back(tmp_path, mode, refuses, began, first):
    """Five rows, and a start after the third."""
    assert tracked(tmp_path, range(1, 6)).began == ("offline", SAME)
    resumed = {"fresh": False, "start_version": 3, "start_rollout_id": 3, "attempt": "2"}
    tracker = tracked(tmp_path, [4, 5, 6], mode, refuses, **resumed)
    assert tracker.began == began
    assert tracker.rows.logged == [(first, 4), (first + 1, 5), (first + 2, 6)]
    lines = [json.loads(line) for line in (tmp_path / "wandb" / "rows.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["row"] for line in lines[3:]] == [first, first + 1, first + 2]


def test_a_start_after_the_last_row_takes_nothing_back(tmp_path):
    tracked(tmp_path, range(1, 4))
    tracker = tracked(tmp_path, [4], fresh=False, start_version=3, start_rollout_id=3)
    assert (tracker.began, tracker.rows.logged) == (("offline", SAME), [(3, 4)])


def test_a_start_from_nothing_is_a_run_of_its_own_and_is_gone_on_with(tmp_path):
    tracked(tmp_path, range(1, 4))
    again = {"id": "run-2", "resume": "allow"}
    tracker = tracked(tmp_path, [1, 2], attempt="2")
    assert (tracker.began, tracker.rows.logged) == (("offline", again), [(0, 1), (1, 2)])
    tracker = tracked(tmp_path, [2], fresh=False, start_version=1, start_rollout_id=1, attempt="3")
    assert tracker.began == ("offline", {"resume_from": "run-2?_step=0"})


def test_nothing_is_written_where_it_is_disabled(tmp_path):
    tracked(tmp_path, [1, 2], "disabled")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("always", [True, False])
def test_what_comes_once_a_collection_has_an_axis_of_its_own(tmp_path, always):
    """Whatever its room: those of components and of strangers too."""
    of_collections = [
        *("rollout/reward", "source/sums/reward", "tools/turns", "replay/source_step", "harbor/seconds"),
        *("stranger/<of/its/own>", "publication/seconds", "wait/trainer_seconds"),
    ]
    of_steps = ["train/loss", "train/<of a plugin>", "eval/held-out/accuracy", "diagnostics/grad_norm/attention"]
    tracker = Tracker("offline", never, always)
    tracker.open(SimpleNamespace(output=tmp_path, fresh=True, run_id="run", attempt="1"))
    for step in (1, 2):
        tracker.log(step, dict.fromkeys([*of_collections, *of_steps], 1.0) | {"rollout/collections": step})
    tracker.close()
    expected = dict.fromkeys(of_steps, "step")
    expected |= dict.fromkeys(of_collections, "step" if always else "rollout/collections")
    assert tracker.rows.axes == expected | {"step": None, "rollout/collections": None}
