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
    cispo_loss,
    clipped_policy_loss,
    kl_estimate,
    policy_loss,
    policy_objective,
    policy_ratio,
    sequence_ratio,
    token_weights,
)

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


def test_a_constant_length_divides_every_response_alike():
    lengths = [3, 1, 5, 2]
    totals = StepTotals(responses=4, tokens=sum(lengths))
    whole = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    weights = token_weights(whole, 4, totals, False, constant_length=10)
    assert weights.tolist() == pytest.approx([1 / 40] * 11)
    cut = [token_weights(part, 2, totals, False, 10) for part in (whole[:4], whole[4:] - 2)]
    assert torch.equal(weights, torch.cat(cut))
    with pytest.raises(AssertionError, match="two denominators"):
        token_weights(whole, 4, totals, True, 10)


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


def test_the_sequence_ratio_is_the_geometric_mean_and_gradient_flows_through_it():
    response = torch.tensor([0, 0, 1])
    log_ratios = torch.tensor([math.log(4.0), 0.0, math.log(0.5)], dtype=torch.float64, requires_grad=True)
    ratio = sequence_ratio(log_ratios, torch.zeros(3, dtype=torch.float64), response)
    assert ratio.tolist() == pytest.approx([2.0, 2.0, 0.5])
    ratio[0].backward()
    assert log_ratios.grad.tolist() == pytest.approx([1.0, 1.0, 0.0])  # 2 · 1/2 for both tokens of the response


def test_gspo_clips_whole_responses():
    """Response 0 leaves the band as a whole, though one of its tokens stands within; response 1 stays, though
    both of its tokens are outside."""
    recipe = Recipe(policy_loss="gspo", eps_clip=0.2, eps_clip_high=0.2)
    response = torch.tensor([0, 0, 1, 1])
    logprobs = torch.tensor([math.log(1.96), 0.0, 1.0, -1.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -2.0, -2.0])
    loss, ratio, clipped = policy_loss(logprobs, torch.zeros(4), advantages, response, recipe)
    assert ratio.tolist() == pytest.approx([1.4, 1.4, 1.0, 1.0])
    assert clipped.tolist() == [True, True, False, False]
    assert loss.tolist() == pytest.approx([-1.2, -1.2, 2.0, 2.0])
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, 2.0, 2.0])


def test_gspo_takes_the_dual_clip():
    recipe = Recipe(policy_loss="gspo", eps_clip_c=3.0)
    response = torch.zeros(2, dtype=torch.long)
    loss, _, clipped = policy_loss(torch.tensor([4.0, 0.0]), torch.zeros(2), -torch.ones(2), response, recipe)
    assert loss.tolist() == [3.0, 3.0]
    assert clipped.tolist() == [True, True]


def test_gspo_equals_ppo_where_a_response_has_one_token():
    torch.manual_seed(0)
    logp, old, advantages = (torch.randn(8) for _ in range(3))
    each = torch.arange(8)
    found = [policy_loss(logp, old, advantages, each, Recipe(policy_loss=kind))[0] for kind in ("gspo", "ppo")]
    assert torch.allclose(*found)


def test_cispo_weighs_the_log_probability_by_the_clipped_ratio():
    recipe = Recipe(policy_loss="cispo", eps_clip=0.2, eps_clip_high=0.28)
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    old = torch.tensor([-1.0 - math.log(2.0), -1.0, -1.0 + math.log(2.0)])
    advantages = torch.tensor([1.0, -1.0, 2.0])
    loss, ratio, clipped = policy_loss(logprobs, old, advantages, None, recipe)
    assert ratio.tolist() == pytest.approx([2.0, 1.0, 0.5])
    assert clipped.tolist() == [True, False, True]
    assert loss.tolist() == pytest.approx([1.28, -1.0, 1.6])
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.28, 1.0, -1.6])  # clipped tokens keep their gradient


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8))
def test_cispo_is_the_formula(tokens):
    recipe = Recipe(policy_loss="cispo")
    logp, old, advantage = (torch.tensor(values, dtype=torch.float64) for values in zip(*tokens, strict=True))
    loss, _ = cispo_loss(logp, policy_ratio(logp, old), advantage, recipe)
    expected = [-min(max(math.exp(p - q), 0.8), 1.28) * a * p for p, q, a in tokens]
    assert loss.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_are_those_of_finite_differences(kind, seed):
    """Of the objective as a whole, near ratio 1 and away from it; cispo's weight is held, as its gradient holds it."""
    torch.manual_seed(seed)
    n = 7
    response = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    recipe = Recipe(policy_loss=kind, entropy_coef=0.01, kl_loss_coef=0.1, kl_loss_type="k3", eps_clip_c=None)
    old, advantages, reference = (torch.randn(n, dtype=torch.float64) for _ in range(3))
    start = old + 0.3 * torch.randn(n, dtype=torch.float64)
    weights = token_weights(response, 3, StepTotals(3, n), False).double()
    correction, entropy = torch.rand(n, dtype=torch.float64), torch.rand(n, dtype=torch.float64)
    held = policy_ratio(start, old).clamp(0.8, 1.28)

    def objective(logp):
        if kind != "cispo":
            found, _ = policy_objective(
                logp, entropy, old, old, advantages, weights, correction, reference, recipe, response
            )
            return found
        kl = kl_estimate(logp, reference, "k3")
        return (weights * (-held * advantages * logp * correction - 0.01 * entropy + 0.1 * kl)).sum()

    logp = start.clone().requires_grad_()
    loss, _ = policy_objective(logp, entropy, old, old, advantages, weights, correction, reference, recipe, response)
    loss.backward()
    assert loss.item() == pytest.approx(objective(start).item())
    step = 1e-6
    for index in range(n):
        moved = torch.zeros(n, dtype=torch.float64)
        moved[index] = step
        slope = (objective(start + moved) - objective(start - moved)) / (2 * step)
        assert logp.grad[index].item() == pytest.approx(slope.item(), abs=1e-7)


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo"])
@pytest.mark.parametrize("constant_length", [None, 16])
@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=6), seed=st.integers(0, 2**31), data=st.data())
def test_a_step_is_the_sum_of_its_micro_batches(kind, constant_length, lengths, seed, data):
    """Loss, metrics and gradient do not depend on where the responses of a step are cut apart."""
    torch.manual_seed(seed)
    n, cut = sum(lengths), data.draw(st.integers(1, len(lengths) - 1))
    at = sum(lengths[:cut])
    whole = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    totals, recipe = StepTotals(len(lengths), n), Recipe(policy_loss=kind, entropy_coef=0.1, eps_clip=0.1)
    old, advantages, entropy, start = (torch.randn(n, dtype=torch.float64) for _ in range(4))
    correction = torch.rand(n, dtype=torch.float64).round()

    def share(part, response):
        logp = start[part].clone().requires_grad_()
        rows = int(response.max()) + 1
        weights = token_weights(response, rows, totals, False, constant_length).double()
        means = token_weights(response, rows, totals, True).double() if constant_length else None
        loss, metrics = policy_objective(
            logp, entropy[part], old[part], old[part], advantages[part], weights, correction[part], None, recipe,
            response, means,
        )  # fmt: skip
        loss.backward()
        return logp.grad, metrics

    gradient, metrics = share(slice(0, n), whole)
    first, second = share(slice(0, at), whole[:at]), share(slice(at, n), whole[at:] - cut)
    assert torch.allclose(gradient, torch.cat([first[0], second[0]]), atol=1e-9)
    for name, value in metrics.items():
        assert value.item() == pytest.approx(first[1][name].item() + second[1][name].item(), abs=1e-6), name


def test_metrics_are_means_over_tokens_where_the_loss_divides_by_a_constant():
    n, response = 4, torch.tensor([0, 0, 0, 1])
    totals, ones = StepTotals(2, n), torch.ones(n)
    weights = token_weights(response, 2, totals, False, constant_length=100)
    means = token_weights(response, 2, totals, True)
    dropped = torch.tensor([0.0, 2.0, 1.0, 1.0])
    _, metrics = policy_objective(
        -ones, 3 * ones, -ones, -ones, ones, weights, dropped, -ones, Recipe(), response, means
    )
    assert metrics["loss"].item() == pytest.approx(-4 / 200)
    assert {name: metrics[name].item() for name in ("entropy", "ratio", "correction_weight", "correction_dropped")} == {
        "entropy": 3.0, "ratio": 1.0, "correction_weight": 1.0, "correction_dropped": 0.25,
    }  # fmt: skip


def test_the_sequence_ratio_needs_to_know_the_responses():
    with pytest.raises(AssertionError, match="needs to know"):
        policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), None, Recipe(policy_loss="gspo"))
