"""Gradients do not depend on how a step is cut; log-probabilities do not need the whole matrix."""

import copy
import random
import sys
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from reroll.api import Sample, TrainingError
from reroll.models.load import load_model
from reroll.training import logprobs as logprobs_module
from reroll.training.batching import micro_batch
from reroll.training.cut import MicroBatchRule, cut, cut_collection, step_totals
from reroll.training.logprobs import PolicyHead, token_logprobs
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.scoring import ScoringRule, StepScores
from reroll.training.step import PolicyTrainer, StepSettings
from reroll.training.tensors import all_finite

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import samples_of

SETTINGS = StepSettings(
    lr=1e-3, min_lr=0.0, lr_decay_style="constant", warmup_steps=0,
    decay_steps=10, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.98, adam_eps=1e-8, clip_grad=1.0,
    use_rollout_logprobs=False,
)  # fmt: skip


ALONE = Ranks(0, 1, "cpu", "float32")
CPU = torch.device("cpu")


def rows_of(rows, packed=False):
    return MicroBatchRule(None, rows, packed)


def trainer_of(model, recipe=None, reference=None, correction=None, standalone=False, **changes):
    settings = StepSettings(**{**vars(SETTINGS), **changes})
    policies = [Policy(copy.deepcopy(found), 1.0) if found is not None else None for found in (model, reference)]
    rule = ScoringRule(standalone, interval=50, tolerance=1e-3)
    return PolicyTrainer(*policies, ALONE, recipe or Recipe(), correction, rule, settings)


def train(trainer, samples, global_batch_size=8, rule=rows_of(8)):  # noqa: B008
    return trainer.train_collection(cut_collection(samples, global_batch_size, 1, rule)[0])


def gradient(model, samples, rows, recipe, packed=False):
    trainer = trainer_of(model, recipe, packed=packed)
    for step in cut_collection(samples, len(samples), 1, rows_of(rows, packed))[0]:
        trainer.accumulate_gradients(trainer.micro_batches(step), step.totals, None, anchored=False)
    found = [parameter.grad for parameter in trainer.policy.parameters()]
    return torch.cat([torch.zeros(1) if grad is None else grad.flatten() for grad in found])


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


@pytest.mark.parametrize("per_token", [True, False])
def test_gradients_of_1x8_2x4_and_8x1_are_equal(model, per_token):
    recipe = Recipe(calculate_per_token_loss=per_token, entropy_coef=0.01)
    samples = samples_of()
    whole = gradient(model, samples, 8, recipe)
    for rows in (4, 1):
        other = gradient(model, samples, rows, recipe)
        assert ((whole - other).norm() / whole.norm()).item() < 1e-5
    mutated = gradient(model, samples[:7], 8, recipe)
    assert ((whole - mutated).norm() / whole.norm()).item() > 1e-3


def test_the_two_aggregations_differ_on_unequal_lengths(model):
    samples = samples_of()
    first, second = (gradient(model, samples, 8, Recipe(calculate_per_token_loss=flag)) for flag in (True, False))
    assert ((first - second).norm() / first.norm()).item() > 1e-2


@pytest.mark.parametrize("options", [{"policy_loss": "gspo"}, {"policy_loss": "cispo"}, {"constant_length": 32}])
def test_every_loss_is_independent_of_the_cut(model, options):
    """Also where ratios differ from 1."""
    samples = samples_of()
    gradients = []
    for rows in (8, 3):
        trainer = trainer_of(model, Recipe(**options))
        (step,) = cut_collection(samples, 8, 1, rows_of(rows))[0]
        batches = trainer.micro_batches(step)
        scores = StepScores([torch.full_like(batch.rollout_logprobs_N, -4.2) for batch in batches], None)
        metrics = trainer.accumulate_gradients(batches, step.totals, scores)
        assert abs(metrics["ratio"] - 1) > 1e-2
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in trainer.policy.parameters()]))
    assert ((gradients[0] - gradients[1]).norm() / gradients[0].norm()).item() < 1e-5
    assert gradients[0].norm() > 0


def test_a_constant_length_scales_the_whole_step(model):
    samples = samples_of()
    single, double = (gradient(model, samples, 8, Recipe(constant_length=length)) for length in (16, 32))
    assert torch.allclose(single, 2 * double, atol=1e-6)


def test_responses_without_loss_count_in_no_denominator(model):
    silent = Sample([3, 4, 5], [True, False, False], [-1.0, 0.0, 0.0], 1.0, 0.0, 0, 0, 9)
    samples = samples_of()
    assert step_totals([*samples, silent]) == step_totals(samples)
    for recipe in (Recipe(), Recipe(calculate_per_token_loss=True), Recipe(constant_length=8)):
        plain, beside = gradient(model, samples, 9, recipe), gradient(model, [*samples, silent], 9, recipe)
        assert ((plain - beside).norm() / plain.norm()).item() < 1e-5


def test_a_reference_for_the_reward_alone_adds_nothing_to_the_loss(model):
    reference = copy.deepcopy(model).requires_grad_(False)
    trainer = trainer_of(model, reference=reference, standalone=True)
    assert "kl" not in train(trainer, samples_of())[0]


def test_cuts_hold_every_sample_once_and_keep_the_budget():
    lengths = [random.Random(7).randint(1, 50) for _ in range(40)] + [500]
    batches = cut(lengths, MicroBatchRule(128))
    assert sorted(index for batch in batches for index in batch) == list(range(41))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 128


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_chunked_log_probabilities_equal_the_plain_ones(model, temperature, monkeypatch):
    batch = micro_batch(samples_of(), packed=False)
    plain = model(input_ids=batch.token_ids_RT, attention_mask=batch.attention_RT).logits / temperature
    reference = plain.log_softmax(-1)
    rows, before = batch.row_N, batch.position_N - 1
    expected = reference[rows, before, batch.target_N]
    expected_entropy = -(reference.exp() * reference).sum(-1)[rows, before]
    grads = []
    for elements, kept in ((64 * 3, 0), (64 * 3, 8_000_000), (8_000_000, 8_000_000)):
        monkeypatch.setitem(logprobs_module.CHUNK_ELEMENTS, "cpu", elements)
        monkeypatch.setitem(logprobs_module.KEPT_ELEMENTS, "cpu", kept)
        found, entropy = token_logprobs(model, PolicyHead(model, temperature), batch)
        assert torch.allclose(found, expected, atol=1e-5)
        assert torch.allclose(entropy, expected_entropy, atol=1e-5)
        model.zero_grad(set_to_none=True)
        (found.sum() + entropy.sum()).backward()
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    model.zero_grad(set_to_none=True)
    assert all(torch.allclose(grad, grads[-1], atol=1e-4) for grad in grads)


def test_a_head_that_is_not_the_models_is_refused(model):
    policy = Policy(model, 1.0)
    policy.check_head(CPU, 1e-4)
    policy.head.shape = policy.head.shape._replace(scale=1.01)
    with pytest.raises(TrainingError, match="computes logits in a way"):
        policy.check_head(CPU, 1e-4)


def test_old_log_probabilities_are_those_before_the_first_step(model):
    """Two steps on the same samples: the second step's ratio is taken to the start of the collection."""
    trainer = trainer_of(model, standalone=True, lr=1e-2)
    first = samples_of(4)
    second = [Sample(**{**vars(sample), "slot": sample.slot + 4}) for sample in first]
    metrics = train(trainer, first + second, 4)
    assert metrics[0]["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert abs(metrics[1]["ratio"] - 1.0) > 1e-4
    assert trainer.version == 2


def test_a_non_finite_step_leaves_the_weights(model):
    trainer = trainer_of(model)
    before = copy.deepcopy(trainer.policy.state_dict())
    bad = [Sample(**{**vars(sample), "advantage": float("nan")}) for sample in samples_of()]
    with pytest.raises(TrainingError, match="weights were not changed"):
        train(trainer, bad)
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.policy.state_dict().items())
    assert trainer.version == 0


def test_no_samples_no_step(model):
    trainer = trainer_of(model)
    assert train(trainer, []) == []
    assert trainer.version == 0


def test_a_seeded_run_pins_its_losses(model):
    """A refactor that changes no arithmetic changes none of these numbers."""
    trainer = trainer_of(model, Recipe(entropy_coef=0.01), standalone=True)
    rule = MicroBatchRule(64)
    metrics = [step for seed in (0, 1) for step in train(trainer, samples_of(seed=seed), 4, rule)]
    assert [step["loss"] for step in metrics] == pytest.approx(PINNED_LOSSES, rel=1e-4)
    assert [step["grad_norm"] for step in metrics] == pytest.approx(PINNED_NORMS, rel=1e-4)


PINNED_LOSSES = [-0.1255115, 0.342492, 0.079844, 0.2042904]
PINNED_NORMS = [1.681507, 3.399496, 1.72276, 3.488155]


def test_the_reference_is_frozen_and_counts(model):
    reference = copy.deepcopy(model).requires_grad_(False)
    recipe = Recipe(kl_loss_coef=0.5, kl_loss_type="k3")
    trainer = trainer_of(model, recipe, reference, standalone=True)
    first, second = (train(trainer, samples_of())[0] for _ in range(2))
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl"] > 1e-6
    assert all(torch.equal(a, b) for a, b in zip(trainer.reference.parameters(), model.parameters(), strict=True))


def splits(rows):
    """Every way to cut `rows` rows, in order."""
    for chosen in product([False, True], repeat=max(rows - 1, 0)):
        ends = [place + 1 for place, cuts in enumerate(chosen) if cuts] + [rows]
        yield list(pairwise([0, *ends]))


def test_a_padded_cut_costs_least():
    """Of all ways to cut the rows from the longest to the shortest, counting padded tokens and passes."""
    draw = random.Random(3)
    rule = MicroBatchRule(max_tokens=120, pass_tokens=12)
    for _ in range(60):
        lengths = [draw.choice([draw.randint(1, 9), draw.randint(20, 140)]) for _ in range(draw.randint(1, 9))]
        sizes = sorted(lengths, reverse=True)
        costs = [
            sum((end - start) * sizes[start] + rule.pass_tokens for start, end in split)
            for split in splits(len(sizes))
            if all(end - start == 1 or (end - start) * sizes[start] <= rule.max_tokens for start, end in split)
        ]
        batches = [[lengths[index] for index in batch] for batch in cut(lengths, rule)]
        assert sorted(size for batch in batches for size in batch) == sizes[::-1]
        assert sum(len(batch) * max(batch) + rule.pass_tokens for batch in batches) == min(costs)


def test_a_pass_of_its_own_must_save_more_than_it_costs():
    assert [len(batch) for batch in cut([300, 300, *[30] * 14], MicroBatchRule(16384))] == [2, 14]
    assert [len(batch) for batch in cut([300, 300, *[30] * 14], MicroBatchRule(16384, pass_tokens=5000))] == [16]
    assert cut([], MicroBatchRule(16)) == cut([], MicroBatchRule(16, packed=True)) == []


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (3e38, True), (float("inf"), False), (float("nan"), False)])
def test_weights_that_are_not_finite_are_found(value, finite):
    """Also where the sum of finite ones is not."""
    tensors = [torch.ones(3, 2), torch.full((4,), value), torch.zeros(0)]
    assert all_finite(tensors) is finite


def test_infinities_of_both_signs_are_found():
    assert not all_finite([torch.tensor([float("inf"), float("-inf")])])
