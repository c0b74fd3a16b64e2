"""Learning rates."""

from __future__ import annotations

import math
from typing import Literal

DecayStyle = Literal["constant", "linear", "cosine", "wsd"]
DecayShape = Literal["linear", "cosine"]


def learning_rate(
    step: int,
    peak: float,
    minimum: float,
    style: DecayStyle,
    warmup_steps: int,
    decay_steps: int,
    warmup_init: float = 0.0,
    wsd_decay_steps: int = 0,
    wsd_decay_style: DecayShape = "linear",
) -> float:
    """The rate of optimizer step `step`, counted from 0.

    Rises linearly from `warmup_init` over `warmup_steps` (the first step already learns), then decays from `peak` to
    `minimum` until `decay_steps`, counted from the start, and stays there. `wsd` (warm-up, stable, decay) keeps
    `peak` until `wsd_decay_steps` are left of those and falls in the shape of `wsd_decay_style`.

    Source of `wsd`: Hu et al. 2024, MiniCPM (arXiv 2404.06395), section 4.
    """
    if step < warmup_steps:
        return warmup_init + (peak - warmup_init) * (step + 1) / warmup_steps
    if style == "constant":
        return peak
    start = max(warmup_steps, decay_steps - wsd_decay_steps) if style == "wsd" else warmup_steps
    shape = wsd_decay_style if style == "wsd" else style
    done = min(1.0, max(0.0, (step - start) / max(1, decay_steps - start)))
    left = 1 - done if shape == "linear" else (1 + math.cos(math.pi * done)) / 2
    return minimum + (peak - minimum) * left
