"""Parts of the recipe that plugins may replace: advantages and off-policy corrections."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from reroll.api.component import Component

if TYPE_CHECKING:
    import torch


class Advantage(Component):
    """Rewards of a collection's groups → advantages of their responses."""

    constant_length: ClassVar[bool] = False
    """True: the loss divides each response by one constant, `rollout.rollout_max_response_len`, in place of its own
    length."""

    @abstractmethod
    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage a reward of one group, in order; equal rewards must give exactly 0."""

    def batch(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        """The same for every group of a collection at once, which is what the runtime asks for. An estimator that
        looks beyond a group overrides it."""
        return [self.advantages(rewards) for rewards in groups]


class Correction(Component):
    """Weights that correct for the distance between the engine's policy and the trainer's."""

    @abstractmethod
    def weights(
        self, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, response: torch.Tensor
    ) -> torch.Tensor:
        """Factors of the policy loss. N counts the tokens of a micro-batch that carry loss; whole responses
        are always in one micro-batch.

        Args:
            old_logprobs: `[N]`, the trainer's log-probabilities at the anchor, detached.
            rollout_logprobs: `[N]`, the engine's.
            response: `[N]` int64, which response a token belongs to, counted from 0.
        Returns:
            `[N]`, detached; 0 drops a token from the policy loss.
        """
