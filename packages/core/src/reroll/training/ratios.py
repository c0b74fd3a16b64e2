"""Arithmetic of log-ratios that objective and corrections share; imports no torch, so that a controller may load it.

Shapes as in `objective`: N tokens that carry loss, R responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios, and their sums and means, are clamped to ± this before the exponential."""


def bounded_exp(log_N: Tensor) -> Tensor:
    """`exp(clamp(log, ±20))`, `[N]`."""
    return log_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def response_sums(values_N: Tensor, response_N: Tensor) -> Tensor:
    """Each token's response's sum of the values, `[N]`, with gradient."""
    return _sums(values_N, response_N)[response_N]


def response_means(values_N: Tensor, response_N: Tensor) -> Tensor:
    """Each token's response's mean of the values, over its tokens that carry loss, `[N]`, with gradient."""
    sums_R = _sums(values_N, response_N)
    lengths_R = response_N.bincount(minlength=len(sums_R)).clamp(min=1)  # no token reads a response without tokens
    return (sums_R / lengths_R)[response_N]


def _sums(values_N: Tensor, response_N: Tensor) -> Tensor:
    num_responses = int(response_N.max()) + 1 if response_N.numel() else 0
    return values_N.new_zeros(num_responses).index_add(0, response_N, values_N)
