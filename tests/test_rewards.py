"""What verifiers may do to a run, and what they may not."""

import json

import pytest
import strange_verifiers
from driving import run_and_watch

from reroll.api import PluginError
from reroll.loop import NothingToLearn
from reroll.reporting.summary import closing_lines
from reroll.traces.saved import read_groups, read_rollouts, step_directory


def lines_of(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


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


def test_tasks_that_cannot_be_judged_are_counted_and_can_be_found(run_file, tmp_path):
    overrides = with_verifier("puzzled", "rollout.rollout_batch_size=8", "rollout.num_rollout=1")
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides, plugin=strange_verifiers)
    records = list(read_rollouts(step_directory(tmp_path / "out", 0)))
    even = [record for record in records if int(record["task"]["targets"]["puzzled"]) % 2 == 0]
    assert 0 < len(even) < len(records)
    for record in records:
        stamp, flagged = record["info"]["reroll"], record in even
        assert stamp["unknown_verifiers"] == (["puzzled"] if flagged else [])
        assert record["rewards"] == ({} if flagged else {"puzzled": float(stamp["sibling"] % 2)})
        if flagged:
            assert stamp["filter_reason"] == "0 of the group's 4 responses were scored; puzzled cannot judge the task"
            assert record["errors"][0]["message"].startswith("unknown: the target ")
    (line,) = lines_of(tmp_path / "out")
    assert line["rollout/verdicts/unknown"] == len(even)
    assert line["rollout/verdicts/ok"] == len(records) - len(even)
    assert line["rollout/groups_unknown"] == seen.summary.groups_unknown == len(even) // 4
    assert seen.summary.unknown_tasks == list(
        dict.fromkeys(f"addition/train:{record['task']['prepared_sample_id']}" for record in even)
    )
    closing = "\n".join(closing_lines(seen.summary))
    assert f"verdicts without a score: {len(even)} unknown, of {len(records)}" in closing
    assert seen.summary.unknown_tasks[0] in closing
    groups = [saved.group for saved in read_groups(step_directory(tmp_path / "out", 0))]
    assert sum(group.unknown_verifiers == ["puzzled"] for group in groups) == len(even) // 4


def test_a_reward_is_the_weighted_sum_of_its_parts_and_every_part_is_kept(run_file, tmp_path):
    rows = [
        {
            "prompt": f"What is {a} + {b}?",
            "targets": {"exact_match": str(a + b), "parts": 0},
            "prepared_sample_id": f"{a}",
        }
        for a, b in ((1, 2), (3, 4), (5, 6), (7, 8))
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f"""
[model]
path = "builtin:tiny-math"
[data]
verifiers = ["exact_match", "parts"]
verifier_weights = {{ exact_match = 2.0, parts = 0.5 }}
[[data.sources]]
name = "common"
task_set = {{ name = "file", path = "{path}" }}
[[data.sources]]
name = "own"
task_set = {{ name = "file", path = "{path}" }}
verifier_weights = {{ parts = 3.0 }}
[rollout]
num_rollout = 1
rollout_batch_size = 8
n_samples_per_prompt = 2
rollout_max_prompt_len = 32
rollout_max_response_len = 8
"""
    seen = run_and_watch(run_file(text), tmp_path / "out", plugin=strange_verifiers)
    assert seen.summary.verdicts == {"ok": 32}
    records = list(read_rollouts(step_directory(tmp_path / "out", 0)))
    parts = {"low": [], "high": []}
    for record in records:
        stamp = record["info"]["reroll"]
        weights = {"exact_match": 2.0, "parts": 3.0 if stamp["env_name"] == "own" else 0.5}
        assert stamp["verifier_weights"] == weights
        verdicts = stamp["verdicts"]
        low, high = int(record["id"][-1], 16) / 15, int(record["id"][-2], 16) / 15
        assert verdicts["parts"]["components"] == {"low": low, "high": high}
        assert record["rewards"] == {name: weights[name] * verdicts[name]["score"] for name in weights}
        assert stamp["reward"] == pytest.approx(sum(record["rewards"].values()))
        for name, values in parts.items():
            values.append(verdicts["parts"]["components"][name])
    assert {record["info"]["reroll"]["env_name"] for record in records} == {"common", "own"}
    (line,) = lines_of(tmp_path / "out")
    for name, values in parts.items():
        assert line[f"rollout/components/parts/{name}"] == pytest.approx(sum(values) / len(values))
    for name in ("exact_match", "parts"):
        mean = sum(record["rewards"][name] for record in records) / len(records)
        assert line[f"rollout/reward/{name}"] == pytest.approx(mean)
