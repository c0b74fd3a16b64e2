"""Verdicts → rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from reroll.api import Verdict

FailurePolicy = Literal["exclude"] | float
"""What a verifier that failed does to the response: `exclude` it, or count as a stated score."""


class Rewards(NamedTuple):
    """`by_verifier` holds weight x score of the verifiers that judged; a failed one is absent, under either
    policy, so that a stated score is never mistaken for a verdict. `total` is None for a response that
    leaves its group's statistics and the loss."""

    by_verifier: dict[str, float]
    total: float | None


def combine_rewards(
    verdicts: Mapping[str, Verdict], weights: Mapping[str, float], failure_policy: FailurePolicy = "exclude"
) -> Rewards:
    """total = Σ weight x score over the verifiers that judged, and under a stated score s also
    Σ weight x s over those that failed. A weight that is not given is 1. The total is None without any
    verdict: there is nothing to go by."""
    by_verifier = {
        name: weights.get(name, 1.0) * verdict.score
        for name, verdict in verdicts.items()
        if verdict.scored and verdict.score is not None
    }
    failed = [name for name in verdicts if name not in by_verifier]
    if not verdicts or (failed and failure_policy == "exclude"):
        return Rewards(by_verifier, None)
    stated = 0.0 if failure_policy == "exclude" else float(failure_policy)
    return Rewards(by_verifier, sum(by_verifier.values()) + sum(weights.get(name, 1.0) * stated for name in failed))


def is_right(verdicts: Mapping[str, Verdict], weights: Mapping[str, float]) -> bool:
    """Whether every verifier of positive weight gave at least 1; a weight that is not given is 1."""
    return all((verdict.score or 0.0) >= 1 - 1e-9 for name, verdict in verdicts.items() if weights.get(name, 1.0) > 0)
