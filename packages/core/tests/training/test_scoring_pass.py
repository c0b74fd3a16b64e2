"""Where old log-probabilities come from, what is compared with what, and what stops a step."""

import asyncio
import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reroll.api import TrainingError
from reroll.models.load import load_model
from reroll.training.cut import MicroBatchRule, cut_collection
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.scoring import ScoringRule
from reroll.training.step import PolicyTrainer, StepSettings

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import ranks_of, samples_of

SETTINGS = StepSettings(
    lr=1e-3, min_lr=0.0, lr_decay_style="constant", warmup_steps=0, decay_steps=10, weight_decay=0.0, adam_beta1=0.9,
    adam_beta2=0.98, adam_eps=1e-8, clip_grad=1.0, use_rollout_logprobs=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


def trainer_of(model, standalone=False, interval=0, tolerance=1e-3, **changes):
    rule = ScoringRule(standalone, interval, tolerance)
    policy, ranks = Policy(copy.deepcopy(model), 1.0), Ranks(0, 1, "cpu", "float32")
    return PolicyTrainer(policy, None, ranks, Recipe(), None, rule, replace(SETTINGS, **changes))


def train(trainer, samples, global_batch_size=8):
    return trainer.train_collection(cut_collection(samples, global_batch_size, 1, MicroBatchRule(64))[0])


def passes(trainer, steps):
    return [train(trainer, samples_of(seed=seed))[0]["scoring_pass"] for seed in range(steps)]


def count_passes(trainer, monkeypatch):
    """Micro-batches that were scored without gradient."""
    scored, score = [], trainer.policy.score
    monkeypatch.setattr(trainer.policy, "score", lambda batch: scored.append(batch) or score(batch))
    return scored


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (0, ["checked", *["skipped"] * 6]),
        (1, ["checked"] * 7),
        (3, ["checked", "skipped", "skipped"] * 2 + ["checked"]),
    ],
)
def test_the_first_step_of_a_process_and_every_nth_are_compared(model, interval, expected):
    assert passes(trainer_of(model, interval=interval), 7) == expected


def test_a_standalone_pass_is_never_compared(model):
    assert passes(trainer_of(model, standalone=True, interval=1), 3) == ["standalone"] * 3


def test_metrics_tell_the_passes_that_ran(model, monkeypatch):
    trainer = trainer_of(model)
    scored = count_passes(trainer, monkeypatch)
    assert train(trainer, samples_of())[0]["scoring_pass"] == "checked"
    assert sum(batch.responses for batch in scored) == 8
    scored.clear()
    assert train(trainer, samples_of(seed=1))[0]["scoring_pass"] == "skipped"
    assert scored == []


def test_a_comparison_changes_nothing(model):
    """The anchor is the training forward, whether or not it is compared."""
    checked, skipped = trainer_of(model, interval=1), trainer_of(model)
    passes(skipped, 1)
    passes(checked, 1)
    ours, theirs = (train(trainer, samples_of(seed=5))[0] for trainer in (checked, skipped))
    assert (ours["scoring_pass"], theirs["scoring_pass"]) == ("checked", "skipped")
    assert ours["grad_norm"] == theirs["grad_norm"]
    assert "scoring_gap" not in ours


def state(trainer):
    optimizer = [value.clone() for values in trainer.optimizer.state.values() for value in values.values()]
    return [tensor.clone() for tensor in trainer.policy.state_dict().values()] + optimizer


def assert_refused(trainer, samples, message):
    before, version = state(trainer), trainer.version
    with pytest.raises(TrainingError, match=message):
        train(trainer, samples)
    after = state(trainer)
    assert len(before) == len(after)
    assert all(map(torch.equal, before, after))
    assert trainer.version == version


def test_a_training_forward_that_differs_is_refused(model, monkeypatch):
    trainer = trainer_of(model, interval=1)
    passes(trainer, 1)
    score = trainer.policy.score
    monkeypatch.setattr(trainer.policy, "score", lambda batch: score(batch) + 0.002)
    assert_refused(
        trainer, samples_of(),
        r"step 1: the training forward differs .* by 0\.002 .*trainer\.scoring_check_tolerance = 0\.001; "
        r"the weights were not changed.*trainer\.scoring_pass_required = true",
    )  # fmt: skip
    monkeypatch.setattr(trainer.policy, "score", lambda batch: score(batch) * float("nan"))
    assert_refused(trainer, samples_of(), "differs from the scoring pass by nan")


def test_a_gap_to_the_engine_above_the_gate_is_refused(model):
    samples = samples_of()
    found = train(trainer_of(model), samples)[0]["train_rollout_logprob_abs_diff"]
    assert train(trainer_of(model, max_train_rollout_logprob_abs_diff=found * 1.001), samples)
    trainer = trainer_of(model, max_train_rollout_logprob_abs_diff=found * 0.999)
    message = rf"step 0: .* differ by {found:.3g} .*trainer\.max_train_rollout_logprob_abs_diff = .*were not changed"
    assert_refused(trainer, samples, message)


def test_the_gap_to_the_engine_is_the_mean_over_tokens(model):
    trainer, samples = trainer_of(model), samples_of()
    (step,) = cut_collection(samples, 8, 1, MicroBatchRule(64))[0]
    gaps = []
    for batch in trainer.micro_batches(step):
        gaps += (trainer.policy.score(batch) - batch.rollout_logprobs_N).abs().tolist()
    metrics = train(trainer, samples)[0]
    assert len(gaps) == metrics["tokens"] == sum(sum(sample.loss_mask) for sample in samples)
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-5)


def test_dropout_acts_in_training_and_not_in_scoring(model_maker, tmp_path):
    model = load_model(model_maker(tmp_path / "model", attention_dropout=0.5))
    torch.manual_seed(0)
    trainer = trainer_of(model, standalone=True, dropout=True)
    ratios = [train(trainer, samples_of())[0]["ratio"] for _ in range(2)]
    assert all(abs(ratio - 1) > 1e-4 for ratio in ratios), "the training forward drops"
    (step,) = cut_collection(samples_of(), 8, 1, MicroBatchRule(64))[0]
    (batch, *_) = trainer.micro_batches(step)
    assert torch.equal(trainer.policy.score(batch), trainer.policy.score(batch))
    assert trainer.policy.training
    still = trainer_of(model, standalone=True)
    assert train(still, samples_of())[0]["ratio"] == pytest.approx(1, abs=1e-6)


def test_dropout_in_real_ranks_scores_by_itself_and_is_refused_where_there_is_none(model_maker, tiny_model, tmp_path):
    dropping = model_maker(tmp_path / "model", attention_dropout=0.3)

    async def metrics(directory):
        async with ranks_of(tmp_path, directory, 1, "trainer.disable_dropout=false") as trainer:
            return (await trainer.train(samples_of()))[0]

    assert asyncio.run(metrics(dropping))["scoring_pass"] == "standalone"
    message = r"trainer\.disable_dropout is false, but Qwen3ForCausalLM in .*tiny-model.* has no dropout"
    with pytest.raises(TrainingError, match=message):
        asyncio.run(metrics(tiny_model))
