"""`[debug]` in whole runs."""

import json

import pytest
from driving import RUN, run_and_watch
from killing import run_to_end

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.plugins import load_plugins


def metrics(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_a_run_with_diagnostics_is_the_run_without_them(run_file, tmp_path, monkeypatch):
    from reroll.publication import publisher

    compared, check_equal = [], publisher.check_equal

    async def noted(engines, source):
        compared.append(await source.completed_steps())
        await check_equal(engines, source)

    monkeypatch.setattr(publisher, "check_equal", noted)
    path = run_file()
    plain = run_and_watch(path, tmp_path / "plain", "rollout.num_rollout=4")
    assert compared == []
    asked = run_and_watch(path, tmp_path / "asked", "rollout.num_rollout=4", "debug.diagnostic_interval=2")
    assert asked.digest == plain.digest
    assert compared == [2, 4]
    told = {
        line["step"]: {name for name in line if name.startswith("diagnostics/")} for line in metrics(tmp_path / "asked")
    }
    assert {step: bool(names) for step, names in told.items()} == {1: False, 2: True, 3: False, 4: True}
    assert {name.split("/")[1] for name in told[2]} == {"grad_norm", "weight_norm", "update_norm", "logprob_gap"}


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_exits_after_its_rollouts_leaves_what_another_trains_on(run_file, tmp_path, asynchronous):
    path, output = run_file(), tmp_path / "out"
    # Without a filter there is something to train on in every collection, whichever groups come first.
    more = ["rollout.group_filters=[]"]
    more += ["async.fully_async=true", "async.max_weight_staleness=1"] if asynchronous else []
    said = run_to_end(path, output, *more, "debug.exit_after_rollout=2", "checkpoint.save_interval=1")
    assert "debug.exit_after_rollout = 2: collections were saved and not trained on" in said
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["ended"], summary["collections"], summary["steps"]) == ("completed", 2, 0)
    assert sorted(item.name for item in (output / "rollouts").glob("step_*")) == ["step_0", "step_1"]
    assert not (output / "checkpoints").exists() or not list((output / "checkpoints").iterdir())
    assert [line["step"] for line in metrics(output)] == [0, 0]
    trained = tmp_path / "trained"
    run_to_end(path, trained, more[0], f"debug.load_rollouts={str(output)!r}", "rollout.num_rollout=2")
    assert [line["step"] for line in metrics(trained)] == [1, 2]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["debug.exit_after_rollout=4"], "debug.exit_after_rollout: 4 is more than rollout.num_rollout, 3"),
        (["debug.exit_after_rollout=0"], "debug.exit_after_rollout"),
        (["debug.diagnostic_interval=0"], "debug.diagnostic_interval"),
        (
            ["debug.exit_after_rollout=1", "debug.load_rollouts='runs/one'"],
            "debug.exit_after_rollout: nothing is generated",
        ),
    ],
)
def test_what_does_nothing_is_refused(run_file, overrides, said):
    with pytest.raises(RunFileError, match=said):
        load_run_file(run_file(RUN), overrides, load_plugins())
