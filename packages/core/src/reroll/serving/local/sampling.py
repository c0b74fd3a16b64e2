"""Drawing one token a row. Shape suffixes: R rows, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

# splitmix64's increment and its two multipliers.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


class Drawn(NamedTuple):
    """Tokens int64 and their log-probabilities float32, both [R], in host memory."""

    tokens_R: Any
    logprobs_R: Any


class Settings(NamedTuple):
    """Sampling parameters of the rows, NumPy arrays [R]; see `reroll.api.SamplingParams`."""

    temperature_R: Any
    top_p_R: Any
    top_k_R: Any
    min_p_R: Any


def mix(words: Any) -> Any:
    """splitmix64's finaliser over an array of uint64: every input bit reaches every output bit."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def seed_keys(seeds: Sequence[int]) -> Any:
    """The streams, uint64 [R], that the seeds' low 64 bits select. Mixed, since streams of raw seeds a multiple of the
    increment apart would be each other's shifted copies."""
    return mix(np.array([seed & _WORD for seed in seeds], dtype=np.uint64) ^ _GAMMA)


def seed_key(seed: int) -> int:
    """The stream of one seed."""
    return int(seed_keys([seed])[0])


def uniforms(keys_R: Any, positions_R: Any) -> Any:
    """Random numbers in [0, 1), float64 [R], each a function of its row's key and position alone.

    A torch.Generator a row would hold state that must survive pauses, retraction and moves between
    rows, and is drawn from in a Python loop; a counter has no state and serves all rows at once.

    Args:
        keys_R: uint64, from `seed_keys`.
        positions_R: index of the token within its response.
    """
    words = mix(keys_R + (positions_R.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def log_probabilities(logits_RV: Any, temperature_R: Any) -> Any:
    """Log-softmax in float32 of `logits / temperature`; of the plain logits where temperature is 0."""
    logits_RV = logits_RV.float()
    if (temperature_R == 1.0).all():
        return torch.log_softmax(logits_RV, dim=-1)
    scale_R = np.where(temperature_R > 0, temperature_R, 1.0).astype(np.float32)
    return torch.log_softmax(logits_RV / torch.from_numpy(scale_R)[:, None], dim=-1)


def truncated(probs_RV: Any, top_p_R: Any, top_k_R: Any, min_p_R: Any) -> Any:
    """`probs_RV` with zeros where a truncation removes the token; the most likely one always stays.

    All three look at the full distribution: a token stays if it is among the `top_k` most likely, if
    those more likely than it have less than `top_p` together, and if it has at least `min_p` times the
    largest probability. Ties go to the smaller token id.
    """
    sorted_RV, order_RV = torch.sort(probs_RV, dim=-1, descending=True, stable=True)
    before_RV = torch.cumsum(sorted_RV, dim=-1, dtype=torch.float64) - sorted_RV
    rank_V = torch.arange(probs_RV.shape[1])
    limit_R = torch.from_numpy(np.where(top_k_R < 0, probs_RV.shape[1], top_k_R).astype(np.int64))
    keep_RV = rank_V < limit_R[:, None]
    keep_RV &= before_RV < torch.from_numpy(np.where(top_p_R >= 1.0, np.inf, top_p_R))[:, None]
    keep_RV &= sorted_RV >= torch.from_numpy(min_p_R)[:, None] * sorted_RV[:, :1]
    keep_RV[:, 0] = True
    return torch.zeros_like(probs_RV).scatter_(1, order_RV, sorted_RV * keep_RV)


def inverse_cdf(probs_RV: Any, uniforms_R: Any) -> Any:
    """The first token whose cumulative probability exceeds `uniform * total`; never one of probability
    zero, because the cumulative sum does not rise there. Probabilities need not sum to one."""
    cdf_RV = torch.cumsum(probs_RV, dim=-1, dtype=torch.float64)
    total_R = cdf_RV[:, -1]
    # The product may round up to the total, which no entry exceeds.
    target_R = torch.minimum(torch.from_numpy(uniforms_R) * total_R, torch.nextafter(total_R, total_R.new_zeros(())))
    return torch.searchsorted(cdf_RV, target_R[:, None], right=True)[:, 0]


def sample(logits_RV: Any, settings: Settings, uniforms_R: Any) -> Drawn:
    """One token a row.

    The result for a row depends on its own logits, settings and random number only: rows with and
    without truncation share the inverse-CDF over token ids in vocabulary order.

    Raises:
        FloatingPointError: a row's logits are not finite, so that they give no distribution.
    """
    logprobs_RV = log_probabilities(logits_RV, settings.temperature_R)
    greedy_R = settings.temperature_R == 0
    if greedy_R.all():
        tokens_R = torch.argmax(logits_RV, dim=-1)
    else:
        probs_RV = logprobs_RV.exp()
        cut_R = (settings.top_p_R < 1.0) | (settings.top_k_R > 0) | (settings.min_p_R > 0)
        if cut_R.any():
            rows = np.flatnonzero(cut_R)
            chosen = (settings.top_p_R[rows], settings.top_k_R[rows], settings.min_p_R[rows])
            probs_RV[rows] = truncated(probs_RV[rows], *chosen)
        tokens_R = inverse_cdf(probs_RV, uniforms_R)
        # Rows of NaN fall off the end of the search; clamped here, they are reported below.
        tokens_R.clamp_(max=logits_RV.shape[1] - 1)
        if greedy_R.any():
            tokens_R = torch.where(torch.from_numpy(greedy_R), torch.argmax(logits_RV, dim=-1), tokens_R)
    found_R = logprobs_RV.gather(1, tokens_R[:, None])[:, 0].numpy()
    if not np.isfinite(found_R).all():
        rows = np.flatnonzero(~np.isfinite(found_R))
        raise FloatingPointError(f"the model gave logits that are not finite for {len(rows)} of {len(found_R)} rows")
    return Drawn(tokens_R.numpy(), found_R)
