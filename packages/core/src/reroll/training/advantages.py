"""Advantages: rewards → one number a response."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import ClassVar

from reroll.api import Advantage, Config

STD_EPSILON = 1e-6
"""Added to a standard deviation before it divides."""


def centred(rewards: Sequence[float]) -> list[float]:
    """`r_i - mean(r)`; exactly 0 for equal rewards, whose mean may differ from them by rounding."""
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


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
            return [0.0] * len(rewards)
        scale = stdev(rewards) + STD_EPSILON if self.config.grpo_std_normalization else 1.0
        return [value / scale for value in centred(rewards)]


class DrGrpo(Advantage):
    """`A_i = r_i - mean(r)`, and a loss that divides every response by the same length, not by its own.

    Source: Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2.
    """

    name = "dr_grpo"
    constant_length: ClassVar[bool] = True

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return centred(rewards)


class Rloo(Advantage):
    """`A_i = r_i - mean(r_j, j ≠ i) = n / (n - 1) · (r_i - mean(r))`: the baseline leaves the response itself out.
    A response without siblings gets 0.

    Source: Kool et al. 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free; for language models: Ahmadian et al.
    2024, Back to Basics (arXiv 2402.14740).
    """

    name = "rloo"

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        others = len(rewards) - 1
        return [value * len(rewards) / others if others else 0.0 for value in centred(rewards)]


class ReinforcePlusPlusBaseline(Advantage):
    """`A_i = (r_i - mean(r)) / (std + 1e-6)`: the mean is the group's, the standard deviation (unbiased, of
    `r_i - mean(r)`) that of every response of the collection. Nothing else is subtracted: what a group's mean was
    taken off has mean 0 already, and equal rewards keep exactly 0.

    Source: Hu et al. 2025, REINFORCE++ (arXiv 2501.03262), the variant with baseline.
    """

    name = "reinforce_plus_plus_baseline"

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return self.batch([rewards])[0]

    def batch(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        centred_groups = [centred(rewards) for rewards in groups]
        everyone = [value for values in centred_groups for value in values]
        scale = stdev(everyone) + STD_EPSILON if len(everyone) > 1 else 1.0
        return [[value / scale for value in values] for values in centred_groups]
