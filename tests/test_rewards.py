"""What verifiers may do to a run, and what they may not."""

import json

import pytest
import strange_verifiers
from driving import run_and_watch

from reroll.api import PluginError
from reroll.loop import NothingToLearn
from reroll.traces.saved import read_rollouts, step_directory


def with_verifier(name, *overrides):
    return [
        f'data.verifiers=["{name}"]',
        f'data.task_set={{name="addition", high=40, verifier="{name}"}}',
        *overrides,
    ]


def test_a_verifier_that_always_says_one_ends_the_run_with_a_reason(run_file, tmp_path):
    overrides = with_verifier("always_right", "rollout.num_rollout=100")
    with pytest.raises(NothingToLearn, match=r"3 collections in a row.*zero_variance_1 \(4 groups\)"):
        run_and_watch(run_file(), tmp_path / "out", *overrides, plugin=strange_verifiers)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/groups_equal_rewards"] for line in lines] == [4, 4, 4]
    assert not any("train/loss" in line for line in lines), "no step on an empty batch"
    assert len(list((tmp_path / "out" / "rollouts").iterdir())) == 3, "the rollouts are kept all the same"


def test_equal_rewards_train_to_nothing_when_the_filter_is_off(run_file, tmp_path):
    overrides = with_verifier("always_right", "rollout.num_rollout=1", "rollout.group_filters=[]")
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides, plugin=strange_verifiers)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    (step,) = [line for line in lines if "train/loss" in line]
    assert (step["train/policy_loss"], step["train/grad_norm"]) == (0.0, 0.0)
    assert len(seen.token_ids[0]) == 16


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("texts", "very good"),
        pytest.param("not_a_number", "nan", marks=pytest.mark.slow),
        pytest.param("nothing", "None", marks=pytest.mark.slow),
    ],
)
def test_a_verifier_that_breaks_its_contract_is_named(run_file, tmp_path, name, value):
    with pytest.raises(BaseException) as caught:
        run_and_watch(run_file(), tmp_path / "out", *with_verifier(name), plugin=strange_verifiers)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PluginError)
    assert name in str(error)
    assert "reroll-stranger" in str(error)
    assert value in str(error)


@pytest.mark.parametrize("policy", ["exclude", pytest.param("0.0", marks=pytest.mark.slow)])
def test_a_verifier_that_raises_on_some_traces_leaves_the_run_going(run_file, tmp_path, policy):
    stated = f'"{policy}"' if policy == "exclude" else policy
    overrides = with_verifier(
        "raises_sometimes", f"rollout.failure_policy={stated}", "rollout.rollout_batch_size=16", "rollout.num_rollout=2"
    )
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides, plugin=strange_verifiers)
    assert seen.summary.steps == 2
    records = [r for step in range(2) for r in read_rollouts(step_directory(tmp_path / "out", step))]
    failed = [record for record in records if int(record["id"], 16) % 10 == 0]
    assert failed
    for record in failed:
        assert record["info"]["reroll"]["verdicts"]["raises_sometimes"]["state"] == "service_error"
        assert "RuntimeError: the tenth trace" in record["errors"][0]["message"]
        assert record["rewards"] == {}
        assert record["info"]["reroll"]["reward"] == (None if policy == "exclude" else 0.0)
    assert not any(record["errors"] for record in records if record not in failed)
    passed = [r for r in records if r["info"]["reroll"]["filter_decision"] == "passed"]
    expected = len([r for r in passed if policy != "exclude" or r not in failed])
    assert sum(len(collection) for collection in seen.token_ids) == expected
