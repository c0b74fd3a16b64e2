"""Engines serve what the trainer holds, and saved rollouts say which weights made them."""

import pytest
from driving import run_and_watch

from reroll.traces.saved import is_complete, read_rollouts, step_directory

OTHERS = ["shared_memory", "distributed"]


@pytest.mark.parametrize("transport", ["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_ten_steps_end_with_equal_weights(run_file, tmp_path, transport):
    overrides = [
        "rollout.num_rollout=10",
        "rollout.group_filters=[]",
        f'serving.transport={{name="{transport}", update_weight_buffer_size=100000}}',
    ]
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides)
    steps = seen.summary.steps
    assert steps == 10
    assert seen.engine_weights == seen.weights
    assert len(set(seen.weights)) == steps, "every step changes the weights"
    assert seen.versions == list(range(1, steps + 1))
    versions = []
    for rollout_id in range(10):
        folder = step_directory(tmp_path / "out", rollout_id)
        assert is_complete(folder)
        records = list(read_rollouts(folder))
        assert len(records) == 16
        (only,) = {record["info"]["reroll"]["policy_version"] for record in records}
        assert all(span[0] == only for r in records for node in r["nodes"] for span in node["weight_versions"])
        versions.append(only)
    assert versions == list(range(10))


def test_process_groups_carry_the_bits_that_files_do(run_file, tmp_path):
    """Token ids, gradients and weights."""
    disk, groups = (
        run_and_watch(
            run_file(),
            tmp_path / transport,
            f'serving.transport={{name="{transport}", update_weight_buffer_size=100000}}',
            "rollout.temperature=2.0",
            "rollout.num_rollout=2",
        )
        for transport in ("disk", "distributed")
    )
    assert groups.digest == disk.digest
    assert groups.engine_weights == groups.weights == disk.engine_weights


def test_two_engines_share_the_groups_and_get_the_same_weights(run_file, tmp_path):
    seen = run_and_watch(run_file(), tmp_path / "out", "serving.num_engines=2")
    assert seen.engine_weights == [digest for digest in seen.weights for _ in range(2)]
    logs = sorted(path.name for path in (tmp_path / "out" / "logs").iterdir())
    assert logs == ["engine-0.log", "engine-1.log", "scoring-0.log", "scoring-1.log", "trainer.log"]
