"""`[async]`: what is refused, with the remedy, and what it resolves to."""

import pytest

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.plan import collection_size, correction, size_problems
from reroll.planning.report import make_plan
from reroll.plugins import load_plugins
from reroll.rollouts.async_config import AsyncSection
from reroll.rollouts.config import RolloutSection

GOOD = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
[rollout]
rollout_batch_size = 8
n_samples_per_prompt = 4
"""
ASYNC = ("async.fully_async=true", "async.max_weight_staleness=1")


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    plugins = load_plugins()
    return lambda *overrides: load_run_file(path, overrides, plugins, [size_problems])


def fault(load, *overrides):
    with pytest.raises(RunFileError) as caught:
        load(*overrides)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(("updates", "least"), [(1, 1), (2, 3), (4, 7)])
def test_the_bound_must_cover_the_last_step_of_a_collection_and_the_error_says_the_smallest_that_does(
    load, updates, least
):
    batch = f"trainer.global_batch_size={32 // updates}"
    told = fault(load, "async.fully_async=true", batch)
    assert "async.max_weight_staleness" in told
    assert "is not given" in told
    assert f"set it to {least} or more" in told
    if least > 1:
        told = fault(load, "async.fully_async=true", batch, f"async.max_weight_staleness={least - 1}")
        assert f"{least - 1} does not cover" in told
        assert f"set it to {least} or more" in told
    run = load("async.fully_async=true", batch, f"async.max_weight_staleness={least}")
    assert collection_size(run).ahead == 1


def test_a_staleness_of_zero_or_less_is_no_bound(load):
    for bound in (0, -1):
        assert "async.max_weight_staleness" in fault(
            load, "async.fully_async=true", f"async.max_weight_staleness={bound}"
        )


def test_a_synchronous_run_is_no_collection_ahead_whatever_its_steps(load):
    for batch in (32, 16, 8):
        assert collection_size(load(f"trainer.global_batch_size={batch}")).ahead == 0


@pytest.mark.parametrize(
    "override",
    [
        "max_weight_staleness=2",
        "capacity_factor=3.0",
        "max_concurrent_samples=64",
        'unused_samples_handler="drop"',
    ],
)
def test_what_does_nothing_without_fully_async_is_said(load, override):
    assert "set async.fully_async = true" in fault(load, f"async.{override}")


def test_less_than_a_group_at_once_and_a_buffer_without_room_for_a_collection_are_refused(load):
    told = fault(load, *ASYNC, "async.max_concurrent_samples=3")
    assert "3 is less than one group of 4 responses" in told
    told = fault(load, *ASYNC, "rollout.over_sampling_factor=3.0", "async.capacity_factor=2.0")
    assert "async.capacity_factor" in told
    assert "set it to 3.0 or more" in told


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("serving.update_weights_interval=2", "published after every collection"),
        ("async.max_policy_lag=2", "async.max_weight_staleness"),
    ],
)
def test_keys_of_other_tools_are_refused_with_the_reason(load, override, reason):
    told = fault(load, *ASYNC, override)
    assert "is refused" in told
    assert reason in told


def test_sizes_are_whole_groups(load):
    run = load(*ASYNC, "async.max_concurrent_samples=11", "async.capacity_factor=2.1")
    section, rollout = run.get(AsyncSection), run.get(RolloutSection)
    assert section.concurrent_groups(rollout) == 2
    assert section.capacity(collection_size(run)) == 16
    assert load(*ASYNC).get(AsyncSection).concurrent_groups(rollout) is None


def test_multiples_of_groups_are_exact_and_one_that_adds_no_group_is_refused(load):
    run = load("rollout.rollout_batch_size=45", "rollout.over_sampling_factor=1.4", "trainer.global_batch_size=180")
    assert run.get(RolloutSection).most_groups == 63
    assert "less than one group more" in fault(load, "rollout.over_sampling_factor=1.05")


def test_an_asynchronous_run_is_corrected_unless_told_otherwise(load):
    def chosen(*overrides):
        run = load(*overrides)
        found = correction(run)
        assert make_plan(run)["objective"]["correction"] == (found.name if found else None)
        return found.name if found else None

    assert chosen() is None
    assert chosen(*ASYNC) == "tis"
    assert chosen(*ASYNC, "objective.use_rollout_logprobs=true") is None
    assert chosen(*ASYNC, 'objective.correction="none"') == "none"
    assert chosen('objective.correction={name="tis", tis_clip=3.0}') == "tis"
