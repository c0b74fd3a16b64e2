"""When the standalone scoring pass runs: a forward pass over the collection, before its first optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class StepScores:
    """Log-probabilities of the tokens that carry loss: `[N]` for each micro-batch of an optimizer step."""

    policy: Sequence[Tensor]
    reference: Sequence[Tensor] | None


@dataclass
class ScoringRule:
    """Which optimizer steps have the pass, or are compared with it.

    Attributes:
        standalone: the recipe needs the pass; without it the training forward, which runs at the same weights, serves.
        interval: of optimizer steps without the pass, the first one of the process and every `interval`-th after it
            run the pass all the same, and are compared with it; 0: the first alone.
        tolerance: largest mean absolute difference of log-probabilities in that comparison.
    """

    standalone: bool
    interval: int
    tolerance: float
    _skipped: int = field(default=0, init=False)

    def check_is_due(self) -> bool:
        """Whether this optimizer step, which needs no pass, is compared with one. Counts the steps."""
        number, self._skipped = self._skipped, self._skipped + 1
        return number % self.interval == 0 if self.interval else number == 0
