"""Advantages: rewards of one group → one number a response."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from reroll.api import Advantage, Config


class GrpoConfig(Config):
    grpo_std_normalization: bool = False
    """Divide by the group's standard deviation (unbiased, plus 1e-6). Off by default: it weighs questions that are
    almost always or almost never solved more than the others."""


class Grpo(Advantage):
    """Group-relative advantages: `A_i = r_i - mean(r)`, divided by `std(r) + 1e-6` where normalisation is on.

    Source: Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1.2; without the division: Liu et al.
    2025, Understanding R1-Zero-Like Training (arXiv 2503.20783).
    """

    name = "grpo"
    Config = GrpoConfig

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        if len(set(rewards)) < 2:
            return [0.0] * len(rewards)  # exactly 0: the mean of equal numbers may differ from them by rounding
        mean = fmean(rewards)
        scale = stdev(rewards) + 1e-6 if self.config.grpo_std_normalization else 1.0
        return [(reward - mean) / scale for reward in rewards]
