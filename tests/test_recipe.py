"""The recipe's options in whole runs: what a run file selects is what the trainer's process works with."""

import asyncio

import pytest
from driving import session_of

from reroll.loop import train
from reroll.traces.samples import unweighted_samples

ALL = ["rollout.group_filters=[]", "rollout.temperature=1.5"]


def collected(path, output, *overrides):
    """Two collections, the first trained on: the second one's samples, its groups' rewards by slot, the penalties
    worked out again, and the step's metrics."""

    async def body():
        async with session_of(path, output, *ALL, *overrides) as session:
            async with session.producing():
                await session.train(await session.collect())
                await session.publisher.publish(session.trainer.version)
                collection = await session.collect()
            samples = await session.samples(collection)
            slots = [place * session.rollout.n_samples_per_prompt for place in collection.places()]
            rewards = {
                slot + index: reward
                for slot, group in zip(slots, collection.passed, strict=True)
                for index, reward in enumerate(group.rewards)
            }
            scored = unweighted_samples(collection.passed, slots)
            coefficient = session.objective.kl_coef
            penalties = {}
            if coefficient:
                divergence = await session.trainer.reference_divergence(scored, keep=False)
                penalties = {slot: coefficient * value for slot, value in divergence.items()}
            truncated = {
                slot + index
                for slot, group in zip(slots, collection.passed, strict=True)
                for index, trace in enumerate(group.traces)
                if trace.truncated
            }
            steps = await session.trainer.train(samples)
            return samples, rewards, penalties, truncated, steps

    return asyncio.run(body())


def test_the_penalty_in_the_reward_is_taken_to_the_starting_checkpoint(run_file, tmp_path):
    samples, rewards, penalties, _, (step,) = collected(
        run_file(), tmp_path / "out", "objective.kl_coef=0.5", "trainer.lr=1e-2"
    )
    assert len(samples) == len(penalties) == 16
    assert max(map(abs, penalties.values())) > 1e-2, "after a step the policy is another one"
    for first in range(0, 16, 4):
        costs = {slot: rewards[slot] - penalties[slot] for slot in range(first, first + 4)}
        mean = sum(costs.values()) / 4
        for sample in samples[first : first + 4]:
            assert sample.advantage == pytest.approx(costs[sample.slot] - mean, abs=1e-6)
    assert "kl" not in step, "the loss has no penalty of its own"


@pytest.mark.slow
def test_truncated_responses_are_not_trained_on(run_file, tmp_path):
    short = ["rollout.rollout_max_response_len=4", "objective.mask_truncated_completions=true"]
    samples, rewards, _, truncated, steps = collected(run_file(), tmp_path / "out", *short)
    assert 0 < len(truncated) < 16
    assert {sample.slot for sample in samples} == set(rewards) - truncated
    assert steps[0]["responses"] == len(samples)


@pytest.mark.parametrize(
    "overrides",
    [
        ["objective.policy_loss='gspo'", "objective.advantage_estimator='dr_grpo'", "objective.correction='icepop'"],
        pytest.param(
            [
                "objective.policy_loss='cispo'",
                "objective.advantage_estimator='reinforce_plus_plus_baseline'",
                "objective.correction={name='mis', level='geometric'}",
                "trainer.lr_decay_style='wsd'",
                "trainer.lr_wsd_decay_iters=2",
                "trainer.lr_warmup_iters=1",
                "trainer.lr_warmup_init=1e-4",
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_with_the_options_by_name(run_file, tmp_path, overrides):
    async def body():
        async with session_of(run_file(), tmp_path / "out", *ALL, *overrides) as session:
            await train(session)
            return session.trainer.version

    assert asyncio.run(body()) == 3
