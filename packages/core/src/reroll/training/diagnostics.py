"""What a diagnostic step measures beside what every step tells. Nothing of the step is changed. Shapes as in
`objective`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from reroll.training.batching import MicroBatch
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.tensors import local

KINDS = {
    "norms": ("norm", "ln_"),
    "embeddings": ("embed", "wte", "wpe"),
    "head": ("lm_head", "output_projection"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "expert", "moe"),
}
"""Kind of parameter → what a name of one contains; the first that fits, so that a norm within an attention is one."""
HALVES = ("first_half", "second_half")


def kind_of(name: str) -> str:
    """Of the parameter of that name; `other` where the name says nothing."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")


class Diagnosis:
    """Of one optimizer step, on every rank at once: norms by kind of parameter, and how far the log-probabilities of
    trainer and engine are apart. Holds a copy of this rank's weights while the step is made."""

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        self._ranks = ranks
        self._parameters = [
            (kind_of(name), parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad
        ]
        self._gaps: list[Tensor] = []
        self._first: list[Tensor] = []
        self._before: list[Tensor] = []
        self._found: dict[str, float] = {}

    def compare(self, batch: MicroBatch, old_N: Tensor) -> None:
        """Of a micro-batch: `|log π_trainer - log π_engine|` of the tokens that carry loss."""
        self._gaps.append((old_N.detach() - batch.rollout_logprobs_N).abs().float())
        self._first.append(first_half(batch.response_N))

    def before_update(self) -> None:
        """The gradients are whole and not yet cut."""
        self._norms("grad_norm", ((kind, item.grad) for kind, item in self._parameters))
        self._before = [local(item.detach()).clone() for _, item in self._parameters]

    def after_update(self) -> None:
        self._norms("weight_norm", self._parameters)
        moved = zip(self._parameters, self._before, strict=True)
        self._norms("update_norm", ((kind, local(item.detach()) - before) for (kind, item), before in moved))
        self._before = []

    def metrics(self) -> dict[str, float]:
        """By name, with the room `diagnostics`."""
        gaps = torch.cat(self._gaps) if self._gaps else torch.zeros(0)
        first = torch.cat(self._first) if self._first else torch.zeros(0, dtype=torch.bool)
        for name, chosen in zip(HALVES, (first, ~first), strict=True):
            values = self._ranks.gather(gaps[chosen]).sort().values
            if len(values):
                quantiles = {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "max": float(values[-1])}
                self._found |= {f"logprob_gap/{name}/{at}": value for at, value in quantiles.items()}
        return {f"diagnostics/{name}": value for name, value in self._found.items()}

    def _norms(self, name: str, tensors: Iterable[tuple[str, Tensor | None]]) -> None:
        sums: dict[str, Tensor] = {}
        for kind, tensor in tensors:
            if tensor is not None:
                square = local(tensor.detach()).double().square().sum()
                sums[kind] = sums[kind] + square if kind in sums else square
        # A device is waited for once.
        found = dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True)) if sums else {}
        kinds = sorted({kind for kind, _ in self._parameters})
        whole = self._ranks.sum({kind: found.get(kind, 0.0) for kind in kinds})
        self._found |= {f"{name}/{kind}": math.sqrt(value) for kind, value in whole.items()}


def first_half(response_N: Tensor) -> Tensor:
    """Whether each token that carries loss is in the first half of its response's, whose middle one is. Tokens of a
    response stand together."""
    if not len(response_N):
        return torch.zeros_like(response_N, dtype=torch.bool)
    counts = torch.bincount(response_N)
    starts = counts.cumsum(0) - counts
    places_N = torch.arange(len(response_N), device=response_N.device) - starts[response_N]
    return 2 * places_N < counts[response_N]


def quantile(ascending: Sequence[float] | Tensor, share: float) -> float:
    """The smallest value that at least the share of all values does not exceed."""
    return float(ascending[max(0, math.ceil(share * len(ascending)) - 1)])
