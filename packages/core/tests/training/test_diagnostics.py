"""Diagnostic steps: what they tell is right, and nothing is changed by asking."""

import sys
from math import hypot
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import samples_of, trained

from reroll.models.load import load_model
from reroll.training.cut import MicroBatchRule, cut_collection
from reroll.training.diagnostics import KINDS, first_half, kind_of, quantile
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.scoring import ScoringRule
from reroll.training.step import PolicyTrainer, StepSettings

KINDS_OF_TINY = {"embeddings", "attention", "mlp", "norms"}
"""Its head is the embedding."""
QUANTILES = {f"logprob_gap/{half}_half/{at}" for half in ("first", "second") for at in ("p50", "p99", "max")}


def trainer_of(model, clip_grad=1.0):
    settings = StepSettings(
        lr=1e-3, min_lr=0.0, lr_decay_style="constant", warmup_steps=0, decay_steps=10, weight_decay=0.0,
        adam_beta1=0.9, adam_beta2=0.98, adam_eps=1e-8, clip_grad=clip_grad, use_rollout_logprobs=False,
        diagnostic_interval=1,
    )  # fmt: skip
    policy, ranks = Policy(load_model(model), 1.0), Ranks(0, 1, "cpu", "float32")
    return PolicyTrainer(policy, None, ranks, Recipe(), None, ScoringRule(False, 0, 1e-3), settings)


def cut(samples):
    return cut_collection(samples, 8, 1, MicroBatchRule(64))[0]


def diagnostics(step):
    return {name.removeprefix("diagnostics/"): value for name, value in step.items() if name.startswith("diagnostics/")}


def rest(step):
    return {name: value for name, value in step.items() if not name.startswith("diagnostics/") and name != "seconds"}


@pytest.mark.parametrize("size", [1, 2])
def test_losses_and_weights_are_equal_to_the_bit_with_diagnostics_and_without(tiny_model, tmp_path, size):
    collections = [samples_of(16, seed=number) for number in range(3)] + [samples_of(1, seed=3)]
    plain, weights = trained(tmp_path / "plain", tiny_model, size, collections)
    asked, same = trained(tmp_path / "asked", tiny_model, size, collections, diagnose=2)
    assert [rest(step) for step in asked] == [rest(step) for step in plain]
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert [bool(diagnostics(step)) for step in asked] == [False, True, False, True]
    assert not any(diagnostics(step) for step in plain)


def test_two_ranks_tell_what_one_does(tiny_model, tmp_path):
    """The last collection leaves a rank without samples."""
    collections = [samples_of(16, seed=0), samples_of(1, seed=1)]
    one, two = (trained(tmp_path, tiny_model, size, collections, "trainer.lr=1e-4", diagnose=1)[0] for size in (1, 2))
    for ours, theirs in zip(one, two, strict=True):
        assert diagnostics(ours) == pytest.approx(diagnostics(theirs), rel=1e-4)


def test_norms_are_of_what_the_step_did(tiny_model):
    trainer = trainer_of(tiny_model, clip_grad=0.01)
    parameters = dict(trainer.policy.model.named_parameters())
    before = {name: item.detach().clone() for name, item in parameters.items()}
    (step,) = trainer.train_collection(cut(samples_of()))
    found = diagnostics(step)
    norms = {f"{what}_norm/{kind}" for what in ("grad", "weight", "update") for kind in KINDS_OF_TINY}
    assert set(found) == norms | QUANTILES
    whole = hypot(*(found[f"grad_norm/{kind}"] for kind in KINDS_OF_TINY))
    assert whole == pytest.approx(step["grad_norm"], rel=1e-5)
    assert whole > 0.01, "before it is cut"
    for kind in KINDS_OF_TINY:
        own = [name for name in parameters if kind_of(name) == kind]
        weight = hypot(*(float(parameters[name].detach().double().norm()) for name in own))
        moved = hypot(*(float((parameters[name].detach() - before[name]).double().norm()) for name in own))
        assert found[f"weight_norm/{kind}"] == pytest.approx(weight, rel=1e-6)
        assert found[f"update_norm/{kind}"] == pytest.approx(moved, rel=1e-6)
        assert moved > 0


def test_gaps_are_of_the_tokens_that_carry_loss(tiny_model):
    trainer = trainer_of(tiny_model)
    samples = samples_of()
    (part,) = cut(samples)
    expected = {"first": [], "second": []}
    for batch in trainer.micro_batches(part):
        gaps = (trainer.policy.score(batch) - batch.rollout_logprobs_N).abs().tolist()
        for response in range(batch.responses):
            own = [gap for gap, number in zip(gaps, batch.response_N.tolist(), strict=True) if number == response]
            middle = (len(own) + 1) // 2
            expected["first"] += own[:middle]
            expected["second"] += own[middle:]
    found = diagnostics(trainer.train_collection(cut(samples))[0])
    for half, gaps in expected.items():
        gaps.sort()
        assert found[f"logprob_gap/{half}_half/max"] == pytest.approx(gaps[-1], rel=1e-5)
        for at, share in (("p50", 0.5), ("p99", 0.99)):
            assert found[f"logprob_gap/{half}_half/{at}"] == pytest.approx(quantile(gaps, share), rel=1e-5)


@given(st.lists(st.integers(0, 6), max_size=8))
def test_the_first_half_of_each_response_has_its_middle(counts):
    response_N = torch.tensor([number for number, count in enumerate(counts) for _ in range(count)], dtype=torch.long)
    expected = [place < (count + 1) // 2 for count in counts for place in range(count)]
    assert first_half(response_N).tolist() == expected


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(values, share):
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    below = [value for value in values if value < found]
    assert len(below) < share * len(values) + 1e-9


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embeddings"),
        ("transformer.wte.weight", "embeddings"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("model.layers.0.post_attention_layernorm.weight", "norms"),
        ("transformer.h.0.ln_1.weight", "norms"),
        ("model.layers.0.mlp.experts.3.up_proj.weight", "mlp"),
        ("model.layers.0.feed_forward.w1.weight", "mlp"),
        ("lm_head.weight", "head"),
        ("model.layers.0.conv.weight", "other"),
    ],
)
def test_names_tell_the_kind(name, kind):
    assert kind_of(name) == kind
    assert kind in {*KINDS, "other"}
