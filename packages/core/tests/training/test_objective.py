"""The objective against the formulas written out token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.training.corrections import TruncatedImportanceSampling
from reroll.training.objective import (
    Recipe,
    StepTotals,
    clipped_policy_loss,
    kl_estimate,
    policy_objective,
    policy_ratio,
    token_weights,
)
from reroll.training.schedule import learning_rate

finite = st.floats(-5, 5, allow_nan=False, width=32)


def by_hand(logp, old, advantage, recipe):
    """One token's loss, in plain Python."""
    ratio = math.exp(max(-20.0, min(20.0, logp - old)))
    clipped = min(max(ratio, 1 - recipe.eps_clip), 1 + recipe.eps_clip_high)
    loss = max(-ratio * advantage, -clipped * advantage)
    if recipe.eps_clip_c is not None and advantage < 0:
        loss = min(loss, -recipe.eps_clip_c * advantage)
    return loss


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8), st.sampled_from([None, 3.0]))
def test_clipped_loss_is_the_formula(tokens, dual):
    recipe = Recipe(eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=dual)
    logp, old, advantage = (torch.tensor(values, dtype=torch.float64) for values in zip(*tokens, strict=True))
    loss, _ = clipped_policy_loss(policy_ratio(logp, old), advantage, recipe)
    expected = [by_hand(*token, recipe) for token in tokens]
    assert loss.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_upper_and_lower_clip_stop_the_gradient():
    recipe = Recipe()
    for log_ratio, advantage, flows in [(0.5, 1.0, False), (0.5, -1.0, True), (-0.5, -1.0, False), (-0.5, 1.0, True)]:
        logp = torch.tensor([log_ratio], requires_grad=True)
        loss, clipped = clipped_policy_loss(policy_ratio(logp, torch.zeros(1)), torch.tensor([advantage]), recipe)
        loss.sum().backward()
        assert (logp.grad.abs().item() > 0) is flows
        assert clipped.item() is (not flows)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_kl_estimators(kind):
    d = torch.tensor([-1.5, 0.0, 0.3, 2.0], dtype=torch.float64)
    expected = {
        "k1": d,
        "k2": d**2 / 2,
        "k3": torch.exp(-d) - 1 + d,
        "low_var_kl": torch.exp(-d) - 1 + d,
    }[kind]
    assert torch.allclose(kl_estimate(d, torch.zeros_like(d), kind), expected)
    assert kl_estimate(torch.tensor([-30.0]), torch.zeros(1), "low_var_kl").item() == 10.0


def test_k3_is_an_unbiased_estimate_of_the_divergence():
    torch.manual_seed(0)
    p, q = torch.randn(20).log_softmax(0), torch.randn(20).log_softmax(0)
    exact = (p.exp() * (p - q)).sum()
    assert torch.allclose((p.exp() * kl_estimate(p, q, "k3")).sum(), exact, atol=1e-5)


@pytest.mark.parametrize("per_token", [True, False])
def test_weights_of_a_step_add_up_to_one_however_it_is_cut(per_token):
    lengths = [3, 1, 5, 2]
    totals = StepTotals(responses=4, tokens=sum(lengths))
    whole = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    first, second = whole[:4], whole[4:] - 2
    weights = token_weights(whole, 4, totals, per_token)
    cut = torch.cat([token_weights(first, 2, totals, per_token), token_weights(second, 2, totals, per_token)])
    assert weights.sum().item() == pytest.approx(1.0)
    assert torch.equal(weights, cut)
    if not per_token:
        assert weights[:3].sum().item() == pytest.approx(0.25)


def test_tis_clips_both_ways_and_does_not_carry_gradient():
    tis = TruncatedImportanceSampling(TruncatedImportanceSampling.Config(tis_clip=2.0, tis_clip_low=0.5))
    weights = tis.weights(torch.tensor([0.0, 5.0, -5.0]), torch.zeros(3), torch.zeros(3, dtype=torch.long))
    assert weights.tolist() == [1.0, 2.0, 0.5]


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_the_whole_objective_is_the_sum_of_its_parts(seed):
    torch.manual_seed(seed)
    n = 6
    recipe = Recipe(entropy_coef=0.01, kl_loss_coef=0.1, kl_loss_type="k3")
    logp, old, rollout, reference = (torch.randn(n, dtype=torch.float64) for _ in range(4))
    entropy, advantage = torch.rand(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    weights, correction = torch.full((n,), 1 / n, dtype=torch.float64), torch.rand(n, dtype=torch.float64)
    loss, metrics = policy_objective(logp, entropy, old, rollout, advantage, weights, correction, reference, recipe)
    policy = (
        sum(
            by_hand(logp[i].item(), old[i].item(), advantage[i].item(), recipe) * correction[i].item() for i in range(n)
        )
        / n
    )
    kl = kl_estimate(logp, reference, "k3").mean().item()
    assert loss.item() == pytest.approx(policy - 0.01 * entropy.mean().item() + 0.1 * kl)
    assert metrics["kl"].item() == pytest.approx(kl)
    assert metrics["policy_loss"].item() == pytest.approx(policy)


def test_on_policy_gradient_is_the_policy_gradient():
    """At ratio 1 the gradient is that of -A·logπ; the loss itself is near 0 whatever happens."""
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages, weights = torch.tensor([1.0, -1.0]), torch.full((2,), 0.5)
    frozen = logp.detach()
    loss, _ = policy_objective(logp, torch.zeros(2), frozen, frozen, advantages, weights, None, None, Recipe())
    loss.backward()
    assert logp.grad.tolist() == [-0.5, 0.5]
    assert loss.item() == 0.0


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.868198, 0.55, 0.1]),
    ],
)
def test_schedules(style, expected):
    steps = [0, 1, 2, 3, 4, 60]
    rates = [learning_rate(step, 1.0, 0.1, style, warmup_steps=2, decay_steps=6) for step in steps]
    assert rates == pytest.approx(expected, abs=1e-6)
