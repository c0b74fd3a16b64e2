"""Off-policy corrections between the engine's policy and the trainer's. Shapes as in `objective`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from reroll.api import Config, Correction
from reroll.training.ratios import LOG_RATIO_BOUND, bounded_exp, response_means, response_sums

if TYPE_CHECKING:
    from torch import Tensor


def check_band(low_key: str, low: float, high_key: str, high: float, *, mask: bool, clamped: bool = True) -> None:
    """ValueError for bounds that contradict each other, drop tokens that need no correction, or are never met."""
    if low > high:
        raise ValueError(f"{low_key} = {low} is above {high_key} = {high}: no weight is between them")
    if mask and not low <= 1 <= high:
        raise ValueError(
            f"{low_key} = {low} and {high_key} = {high} leave out 1: tokens on which engine and trainer agree would "
            "be dropped; put the bounds on either side of 1"
        )
    limit = math.exp(LOG_RATIO_BOUND)
    if clamped and high >= limit:
        raise ValueError(f"{high_key} = {high} is never reached: weights end at {limit:.3g}; give a smaller one")
    if clamped and 0 < low <= 1 / limit:
        raise ValueError(f"{low_key} = {low} is never reached: weights begin at {1 / limit:.3g}; 0 switches it off")


def within(weights_N: Tensor, low: float, high: float) -> Tensor:
    """The weights, 0 in place of those outside `[low, high]`."""
    return weights_N.masked_fill((weights_N < low) | (weights_N > high), 0.0)


class TisConfig(Config):
    tis_clip: float = Field(2.0, gt=0)
    """Upper bound of the importance weight: lower limits how much a token counts that the trainer finds likelier."""
    tis_clip_low: float = Field(0.0, ge=0)
    """Lower bound of the importance weight: above 0, a token that the trainer finds unlikely still counts so much."""

    @model_validator(mode="after")
    def _band(self) -> TisConfig:
        check_band("tis_clip_low", self.tis_clip_low, "tis_clip", self.tis_clip, mask=False, clamped=False)
        return self


class TruncatedImportanceSampling(Correction):
    """`w = clamp(exp(logπ_old - logπ_rollout), tis_clip_low, tis_clip)` per token.

    Source: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training.
    """

    name = "tis"
    Config = TisConfig

    def weights(self, old_logprobs: Tensor, rollout_logprobs: Tensor, response: Tensor) -> Tensor:
        return (old_logprobs - rollout_logprobs).exp().clamp(self.config.tis_clip_low, self.config.tis_clip)


class IcePopConfig(Config):
    icepop_low: float = Field(0.5, ge=0)
    """Tokens whose weight is below it are dropped."""
    icepop_high: float = Field(5.0, gt=0)
    """Tokens whose weight is above it are dropped."""

    @model_validator(mode="after")
    def _band(self) -> IcePopConfig:
        check_band("icepop_low", self.icepop_low, "icepop_high", self.icepop_high, mask=True)
        return self


class IcePop(Correction):
    """`w = exp(logπ_old - logπ_rollout)` per token within `[icepop_low, icepop_high]`, and 0 outside.

    Source: Ling Team 2025, Every Step Evolves (arXiv 2510.18855), the masking function M(k; α, β).
    """

    name = "icepop"
    Config = IcePopConfig

    def weights(self, old_logprobs: Tensor, rollout_logprobs: Tensor, response: Tensor) -> Tensor:
        ratio_N = bounded_exp(old_logprobs - rollout_logprobs)
        return within(ratio_N, self.config.icepop_low, self.config.icepop_high)


class MisConfig(Config):
    level: Literal["token", "sequence", "geometric"] = "sequence"
    """What one weight is taken over: each token; a response, as the product of its tokens' ratios; a response, as
    their geometric mean, which does not depend on its length."""
    mode: Literal["truncate", "mask"] = "mask"
    """Weights outside the bounds: "truncate" moves them to the nearer one, "mask" drops what they belong to."""
    mis_clip: float = Field(2.0, gt=0)
    """Upper bound of the weight: lower truncates or drops more of what the trainer finds likelier."""
    mis_clip_low: float = Field(0.0, ge=0)
    """Lower bound of the weight: higher truncates or drops more of what the trainer finds unlikely."""

    @model_validator(mode="after")
    def _band(self) -> MisConfig:
        check_band("mis_clip_low", self.mis_clip_low, "mis_clip", self.mis_clip, mask=self.mode == "mask")
        return self


class MaskedImportanceSampling(Correction):
    """Importance weights of tokens or whole responses, truncated to `[mis_clip_low, mis_clip]` or dropped outside it.

    With `d_t = logπ_old - logπ_rollout` and T tokens of the response that carry loss: token `w_t = exp(d_t)`;
    sequence `w = exp(Σ_t d_t)`; geometric `w = exp(Σ_t d_t / T)`; exponents are clamped to ±20. Every token of a
    response carries the weight of its response.

    Source: Liu, Li et al. 2025, When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference
    Mismatch; the geometric mean also in Zheng et al. 2025, GSPO (arXiv 2507.18071).
    """

    name = "mis"
    Config = MisConfig

    def weights(self, old_logprobs: Tensor, rollout_logprobs: Tensor, response: Tensor) -> Tensor:
        log_N = old_logprobs - rollout_logprobs
        if self.config.level == "sequence":
            log_N = response_sums(log_N, response)
        elif self.config.level == "geometric":
            log_N = response_means(log_N, response)
        weights_N = bounded_exp(log_N)
        if self.config.mode == "truncate":
            return weights_N.clamp(self.config.mis_clip_low, self.config.mis_clip)
        return within(weights_N, self.config.mis_clip_low, self.config.mis_clip)


class NoCorrection(Correction):
    """Every token counts in full. For an asynchronous run that is not to be corrected."""

    name = "none"

    def weights(self, old_logprobs: Tensor, rollout_logprobs: Tensor, response: Tensor) -> Tensor:
        return old_logprobs.new_ones(old_logprobs.shape)
