"""Off-policy corrections between the engine's policy and the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from reroll.api import Config, Correction

if TYPE_CHECKING:
    import torch


class TisConfig(Config):
    tis_clip: float = Field(2.0, gt=0)
    """Upper bound of the importance weight."""
    tis_clip_low: float = Field(0.0, ge=0)
    """Lower bound of the importance weight."""


class TruncatedImportanceSampling(Correction):
    """`w = clamp(exp(logπ_old - logπ_rollout), tis_clip_low, tis_clip)` per token.

    Source: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training.
    """

    name = "tis"
    Config = TisConfig

    def weights(
        self, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, response: torch.Tensor
    ) -> torch.Tensor:
        return (old_logprobs - rollout_logprobs).exp().clamp(self.config.tis_clip_low, self.config.tis_clip)


class NoCorrection(Correction):
    """Every token counts in full. For an asynchronous run that is not to be corrected."""

    name = "none"

    def weights(
        self, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, response: torch.Tensor
    ) -> torch.Tensor:
        return old_logprobs.new_ones(old_logprobs.shape)
