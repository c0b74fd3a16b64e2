"""Several ranks compute what one does."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from reroll.api import WorkerDied

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import averaged_over_ranks, dies_after_its_connections, distance, ranks_of, samples_of, trained

SLOWLY = "trainer.lr=1e-4"
"""At 1e-3 the rounding of random rewards grows chaotically."""
SIZES = [16, 9, 16, 3, 16, 1]
"""Of collections: with the last two, ranks have fewer samples than micro-batches, or none."""


def collections_of(steps):
    return [samples_of(SIZES[number % len(SIZES)], seed=number) for number in range(steps)]


def assert_same(one, other, limit=1e-5):
    for ours, theirs in zip(one[0], other[0], strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=limit)
        for name in ("loss", "policy_loss", "entropy", "ratio", "train_rollout_logprob_abs_diff", "kl"):
            assert ours.get(name, 0.0) == pytest.approx(theirs.get(name, 0.0), rel=limit, abs=limit)
        assert (ours["responses"], ours["tokens"]) == (theirs["responses"], theirs["tokens"])
        assert ours["forward_tokens"] == theirs["forward_tokens"]
    assert distance(one[1], other[1]) < limit


def packing(packed):
    return f"trainer.packing={str(packed).lower()}"


def per_token(flag):
    return f"objective.calculate_per_token_loss={str(flag).lower()}"


def compare(tmp_path, model, sizes, steps, *overrides):
    collections = collections_of(steps)
    results = [trained(tmp_path, model, size, collections, SLOWLY, *overrides) for size in (1, *sizes)]
    for other in results[1:]:
        assert_same(results[0], other)
    return results


@pytest.mark.parametrize("packed", [False, True])
def test_two_ranks_train_as_one_does(tiny_model, tmp_path, packed):
    compare(tmp_path, tiny_model, [2], 6, packing(packed), per_token(packed), "trainer.max_tokens_per_micro_batch=64")


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_two_and_four_ranks_train_as_one_does(tiny_model, tmp_path, packed, flag):
    steps = len(SIZES)
    compare(
        tmp_path, tiny_model, [2, 4], steps, packing(packed), per_token(flag), "trainer.max_tokens_per_micro_batch=64"
    )


def test_ranks_without_samples_take_part(tiny_model, tmp_path):
    """Of three samples one rank has none at all; of one sample, three."""
    collections = [samples_of(3), samples_of(1, seed=1)]
    one, four = (trained(tmp_path, tiny_model, size, collections, SLOWLY) for size in (1, 4))
    assert_same(one, four)


RECIPES = {
    "tis": ['objective.correction="tis"'],
    "kl_loss": ["objective.use_kl_loss=true", "objective.kl_loss_coef=1.0"],
    "activation_checkpointing": ["trainer.activation_checkpointing=true"],
    "gspo": ['objective.policy_loss="gspo"', 'objective.correction="mis"'],
    "constant_length": ['objective.advantage_estimator="dr_grpo"', "trainer.global_batch_size=8"],
}


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    """What one rank comes to without any of the recipes."""
    return trained(tmp_path_factory.mktemp("plain"), tiny_model, 1, collections_of(len(SIZES)), SLOWLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_the_same_on_ranks(tiny_model, tmp_path, plain, name):
    results = compare(tmp_path, tiny_model, [2, 4], len(SIZES), *RECIPES[name])
    if name == "activation_checkpointing":
        assert_same(results[0], plain)
    else:
        assert distance(results[0][1], plain[1]) > 1e-5, "the recipe does nothing here"


def test_correction_reference_and_activation_checkpointing_together(tiny_model, tmp_path):
    together = [*RECIPES["tis"], *RECIPES["kl_loss"], *RECIPES["activation_checkpointing"]]
    metrics, _ = compare(tmp_path, tiny_model, [2], 4, *together)[0]
    assert all(step["correction_weight"] != 1 for step in metrics)
    assert metrics[-1]["kl"] > 0


def test_a_wrong_scaling_over_ranks_would_be_caught(tiny_model, tmp_path):
    """By the norm alone: clipping and AdamW take a factor out of the weights."""
    right, wrong = (
        trained(tmp_path, tiny_model, size, collections_of(2), SLOWLY, before=averaged_over_ranks) for size in (1, 2)
    )
    with pytest.raises(AssertionError):
        assert_same(right, wrong)
    assert wrong[0][0]["grad_norm"] == pytest.approx(right[0][0]["grad_norm"] / 2, rel=1e-5)


def test_bfloat16_is_near(tiny_model, tmp_path):
    """Also on a single rank, which then shards with itself."""
    collections = collections_of(3)
    full = trained(tmp_path, tiny_model, 1, collections, SLOWLY)
    for size in (1, 2):
        half = trained(
            tmp_path / "half", tiny_model, size, collections, SLOWLY, 'trainer.compute_dtype="bfloat16"',
            "trainer.scoring_check_tolerance=0.1",
        )  # fmt: skip
        assert_same(full, half, 5e-2)
        assert 1e-7 < distance(full[1], half[1]) < 1e-2
        assert all(tensor.dtype == full[1][name].dtype for name, tensor in half[1].items())


def test_the_death_of_a_rank_is_what_the_run_ends_of(tiny_model, tmp_path):
    """Whichever rank dies in the middle of a step, the others' collectives fail of it."""

    async def work(victim):
        async with ranks_of(tmp_path, tiny_model, 2, SLOWLY) as trainer:
            await trainer.train(samples_of(4))
            running = asyncio.create_task(trainer.train([s for seed in range(40) for s in samples_of(16, seed=seed)]))
            await asyncio.sleep(0.3)
            assert not running.done()
            os.kill(trainer.workers[victim].process.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                with pytest.raises(WorkerDied, match=rf"trainer-{victim}.*SIGKILL"):
                    await running

    for victim in (0, 1):
        asyncio.run(work(victim))


def test_a_death_counts_more_than_what_the_others_fail_of(tiny_model, tmp_path):
    """Here they fail half a second before it, of a connection."""
    with pytest.raises(WorkerDied, match="trainer-1.*exit code 9") as caught:
        trained(tmp_path, tiny_model, 2, collections_of(1), before=dies_after_its_connections)
    assert "onnection closed by peer" in str(caught.value.__cause__)
