"""The policy objective: tensors in, tensors and metrics out.

Shapes: N counts the tokens of a micro-batch that carry loss, flattened over its responses; R counts responses.
`response_N` says which response a token belongs to. Log-probabilities are natural, of the distribution whose
logits were divided by the rollout temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reroll.training.cut import StepTotals
from reroll.training.ratios import LOG_RATIO_BOUND, bounded_exp, response_means

KlType = Literal["k1", "k2", "k3", "low_var_kl"]
PolicyLoss = Literal["ppo", "gspo", "cispo"]


@dataclass(frozen=True)
class Recipe:
    """The numbers of the objective; see `ObjectiveSection` for what each does.

    Attributes:
        constant_length: divides every response in place of its own length, where the advantage estimator asks for it.
    """

    policy_loss: PolicyLoss = "ppo"
    eps_clip: float = 0.2
    eps_clip_high: float = 0.28
    eps_clip_c: float | None = None
    calculate_per_token_loss: bool = False
    constant_length: int | None = None
    entropy_coef: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: KlType = "low_var_kl"


def policy_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """`ρ = exp(clamp(logπ - logπ_old, ±20))`, `[N]`."""
    return bounded_exp(logprobs_N - old_logprobs_N)


def sequence_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor, response_N: Tensor) -> Tensor:
    """GSPO's `ρ = exp(clamp(mean_t(logπ - logπ_old), ±20))`, `[N]`: one number a response, given to each of its
    tokens. The mean is over the response's tokens that carry loss, and the gradient flows through it.

    Source: Zheng et al. 2025, Group Sequence Policy Optimization (arXiv 2507.18071).
    """
    return bounded_exp(response_means(logprobs_N - old_logprobs_N, response_N))


def clipped_policy_loss(ratio_N: Tensor, advantages_N: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """`max(-ρA, -clip(ρ, 1-eps_clip, 1+eps_clip_high)·A)`, and where that took the clipped side, both `[N]`.

    With `eps_clip_c = c`, tokens of negative advantage lose at most `-cA` (dual clip, Ye et al. 2020,
    arXiv 1912.09729). Source of the clip: Schulman et al. 2017 (arXiv 1707.06347); of the two bounds: Yu et al.
    2025, DAPO (arXiv 2503.14476).
    """
    plain_N = -ratio_N * advantages_N
    clipped_N = -ratio_N.clamp(1 - recipe.eps_clip, 1 + recipe.eps_clip_high) * advantages_N
    loss_N = torch.maximum(plain_N, clipped_N)
    is_clipped_N = clipped_N > plain_N
    if recipe.eps_clip_c is not None:
        bound_N = -recipe.eps_clip_c * advantages_N
        negative_N = advantages_N < 0
        is_clipped_N = is_clipped_N | (negative_N & (bound_N < loss_N))
        loss_N = torch.where(negative_N, torch.minimum(loss_N, bound_N), loss_N)
    return loss_N, is_clipped_N


def cispo_loss(logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """`-sg(clip(ρ, 1-eps_clip, 1+eps_clip_high))·A·logπ`, and where the clip moved ρ, both `[N]`.

    sg stops the gradient: a clipped token keeps its gradient, with a bounded weight. Source: MiniMax 2025,
    MiniMax-M1 (arXiv 2506.13585), section 3.1.
    """
    weight_N = ratio_N.detach().clamp(1 - recipe.eps_clip, 1 + recipe.eps_clip_high)
    return -weight_N * advantages_N * logprobs_N, weight_N != ratio_N.detach()


def policy_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, response_N: Tensor | None, recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, ρ and where it was clipped, of each token, as `recipe.policy_loss` wants them, all `[N]`."""
    if recipe.policy_loss == "gspo":
        assert response_N is not None, "a ratio of whole responses needs to know them"
        ratio_N = sequence_ratio(logprobs_N, old_logprobs_N, response_N)
    else:
        ratio_N = policy_ratio(logprobs_N, old_logprobs_N)
    if recipe.policy_loss == "cispo":
        loss_N, is_clipped_N = cispo_loss(logprobs_N, ratio_N, advantages_N, recipe)
    else:
        loss_N, is_clipped_N = clipped_policy_loss(ratio_N, advantages_N, recipe)
    return loss_N, ratio_N, is_clipped_N


def kl_estimate(logprobs_N: Tensor, reference_logprobs_N: Tensor, kind: KlType) -> Tensor:
    """Per-token estimate of KL(π‖π_ref), `[N]`, with `d = logπ - logπ_ref`.

    k1 = d; k2 = d²/2; k3 = e^{-d} - 1 + d; low_var_kl = k3 with d clamped to ±20 and the result to ±10.
    Source: Schulman 2020, Approximating KL Divergence.
    """
    d_N = logprobs_N - reference_logprobs_N
    if kind == "k1":
        return d_N
    if kind == "k2":
        return d_N.square() / 2
    if kind == "k3":
        return (-d_N).exp() - 1 + d_N
    d_N = d_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return ((-d_N).exp() - 1 + d_N).clamp(-10.0, 10.0)


def token_weights(
    response_N: Tensor, num_responses: int, totals: StepTotals, per_token: bool, constant_length: int | None = None
) -> Tensor:
    """Weight of each token in the step's loss, `[N]`.

    Per response: the mean over responses of each one's token mean, `1 / (T_i · responses)`. Per token: one over all
    the step's tokens. With a constant length L: `1 / (L · responses)`, the mean over responses of each one's sum / L.
    The first two add up to 1 over a step; the last one to mean length / L. Always the denominator is the step's, so
    that the gradient does not depend on the cut into micro-batches.

    Source of the last: Liu et al. 2025, Dr. GRPO (arXiv 2503.20783), which takes the generation budget for L.
    """
    if constant_length is not None:
        assert not per_token, "a constant length and a mean over tokens are two denominators"
        return torch.full_like(response_N, 1.0 / (constant_length * totals.responses), dtype=torch.float32)
    if per_token:
        return torch.full_like(response_N, 1.0 / totals.tokens, dtype=torch.float32)
    lengths_R = torch.bincount(response_N, minlength=num_responses).to(torch.float32)
    return 1.0 / (lengths_R[response_N] * totals.responses)


def policy_objective(
    logprobs_N: Tensor,
    entropy_N: Tensor,
    old_logprobs_N: Tensor,
    rollout_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    correction_N: Tensor | None,
    reference_logprobs_N: Tensor | None,
    recipe: Recipe,
    response_N: Tensor | None = None,
    mean_weights_N: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`policy - entropy_coef·H + kl_loss_coef·KL`, this micro-batch's share of the step.

    Args:
        logprobs_N, entropy_N: of the policy in training, with gradient.
        old_logprobs_N: the ratio's denominator, detached.
        rollout_logprobs_N: the engine's, for the agreement metric.
        weights_N: from `token_weights`.
        correction_N: factors of the policy loss from an off-policy correction, detached.
        reference_logprobs_N: of the frozen reference; needed where `kl_loss_coef` is not 0.
        response_N: which response a token belongs to; needed by `policy_loss = "gspo"`.
        mean_weights_N: for the metrics that are means over tokens, where `weights_N` do not add up to 1 over the step.
    Returns:
        the loss, and weighted sums by name: adding them up over micro-batches gives the step's means.
    """
    means_N = weights_N if mean_weights_N is None else mean_weights_N
    loss_N, ratio_N, is_clipped_N = policy_loss(logprobs_N, old_logprobs_N, advantages_N, response_N, recipe)
    if correction_N is not None:
        loss_N = loss_N * correction_N
    policy = (weights_N * loss_N).sum()
    loss = policy
    if recipe.entropy_coef:
        loss = loss - recipe.entropy_coef * (weights_N * entropy_N).sum()
    metrics = {
        "policy_loss": policy.detach(),
        "entropy": (means_N * entropy_N).sum().detach(),
        "clip_fraction": (means_N * is_clipped_N).sum(),
        "ratio": (means_N * ratio_N).sum().detach(),
    }
    if reference_logprobs_N is not None:
        kl_N = kl_estimate(logprobs_N, reference_logprobs_N, recipe.kl_loss_type)
        loss = loss + recipe.kl_loss_coef * (weights_N * kl_N).sum()
        metrics["kl"] = (means_N * kl_N).sum().detach()
    if correction_N is not None:
        metrics["correction_weight"] = (means_N * correction_N).sum()
        metrics["correction_dropped"] = (means_N * (correction_N == 0)).sum()
    metrics["loss"] = loss.detach()
    return loss, metrics
