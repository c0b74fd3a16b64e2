"""Learning rates."""

from __future__ import annotations

import math
from typing import Literal

DecayStyle = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, peak: float, minimum: float, style: DecayStyle, warmup_steps: int, decay_steps: int
) -> float:
    """The rate of optimizer step `step`, counted from 0.

    Rises linearly over `warmup_steps` (the first step already learns), then decays from `peak` to `minimum`
    until `decay_steps`, counted from the start, and stays there.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if style == "constant":
        return peak
    done = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    left = 1 - done if style == "linear" else (1 + math.cos(math.pi * done)) / 2
    return minimum + (peak - minimum) * left
