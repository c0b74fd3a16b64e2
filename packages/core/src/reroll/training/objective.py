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

KlType = Literal["k1", "k2", "k3", "low_var_kl"]
LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to ± this before the exponential."""


@dataclass(frozen=True)
class Recipe:
    """The numbers of the objective; see `ObjectiveSection` for what each does."""

    eps_clip: float = 0.2
    eps_clip_high: float = 0.28
    eps_clip_c: float | None = None
    calculate_per_token_loss: bool = False
    entropy_coef: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: KlType = "low_var_kl"


def policy_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """`ρ = exp(clamp(logπ - logπ_old, ±20))`, `[N]`."""
    return (logprobs_N - old_logprobs_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


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


def token_weights(response_N: Tensor, num_responses: int, totals: StepTotals, per_token: bool) -> Tensor:
    """Weight of each token in the step's loss, `[N]`; the weights of a whole step add up to 1.

    Per response: the mean over responses of each one's token mean. Per token: one over all the step's tokens.
    Either way the denominator is the step's, so that the gradient does not depend on the cut into micro-batches.
    """
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
) -> tuple[Tensor, dict[str, Tensor]]:
    """`policy - entropy_coef·H + kl_loss_coef·KL`, this micro-batch's share of the step.

    Args:
        logprobs_N, entropy_N: of the policy in training, with gradient.
        old_logprobs_N: the ratio's denominator, detached.
        rollout_logprobs_N: the engine's, for the agreement metric.
        weights_N: from `token_weights`.
        correction_N: factors of the policy loss from an off-policy correction, detached.
        reference_logprobs_N: of the frozen reference; needed where `kl_loss_coef` is not 0.
    Returns:
        the loss, and weighted sums by name: adding them up over micro-batches gives the step's means.
    """
    ratio_N = policy_ratio(logprobs_N, old_logprobs_N)
    loss_N, is_clipped_N = clipped_policy_loss(ratio_N, advantages_N, recipe)
    if correction_N is not None:
        loss_N = loss_N * correction_N
    policy = (weights_N * loss_N).sum()
    entropy = (weights_N * entropy_N).sum()
    loss = policy - recipe.entropy_coef * entropy if recipe.entropy_coef else policy
    metrics = {
        "policy_loss": policy.detach(),
        "entropy": entropy.detach(),
        "clip_fraction": (weights_N * is_clipped_N).sum(),
        "ratio": (weights_N * ratio_N).sum().detach(),
    }
    if reference_logprobs_N is not None:
        kl = (weights_N * kl_estimate(logprobs_N, reference_logprobs_N, recipe.kl_loss_type)).sum()
        loss = loss + recipe.kl_loss_coef * kl
        metrics["kl"] = kl.detach()
    if correction_N is not None:
        metrics["correction_weight"] = (weights_N * correction_N).sum()
    metrics["loss"] = loss.detach()
    return loss, metrics
