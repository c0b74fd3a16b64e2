"""The model's forward for running requests, recorded once and replayed without Python.

A small model's decode step is mostly the interpreter walking through modules: replaying the recorded
operations gives the same numbers, to the bit, in about half the time. The recording is of the model's own
forward, shares its parameters, and is only used if nothing in it depended on the recorded values.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reroll.serving.local.cache import FlatCache, attend_rows, serve_with, store_rows

jit: Any = torch.jit
"""Untyped: torch exports neither its warning nor its executor switch."""


class RowsCache(FlatCache):
    """Cache and attention of a step without joining prompts, over tensors that a recording takes as inputs.

    Args:
        mask, indices: as in `cache.Layout`; the index of each layer.
        keys, values: stores of each layer.
    """

    def __init__(self, mask: Any, indices: Any, keys: Any, values: Any) -> None:
        super().__init__()
        self.mask, self.indices, self.keys, self.values = mask, indices, keys, values

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        self._layer = (self.keys[layer_idx], self.values[layer_idx])
        for store_SKTD, new_1KND in zip(self._layer, (key_states, value_states), strict=True):
            store_rows(store_SKTD, new_1KND, self.indices[layer_idx])
        return key_states, value_states

    def attend(self, query: Any, key: Any, value: Any, scaling: float | None, options: dict[str, Any]) -> Any:
        return attend_rows(query, *self._layer, self.mask, scaling)


class _Decode(torch.nn.Module):
    """What is recorded: (ids, positions, mask, indices, keys, values) → logits [1, N, V]."""

    def __init__(self, model: Any, cache_name: str) -> None:
        super().__init__()
        self.model = model
        self.cache_name = cache_name

    def forward(self, ids_1N: Any, positions_1N: Any, mask: Any, indices: Any, keys: Any, values: Any) -> Any:
        cache = RowsCache(mask, indices, keys, values)
        serve_with(cache)
        out = self.model(input_ids=ids_1N, position_ids=positions_1N, use_cache=True, **{self.cache_name: cache})
        return out.logits


def record(model: Any, cache_name: str, inputs: tuple[Any, ...]) -> Any | None:
    """The recorded decode forward, or None if the model's operations depend on the values in `inputs`,
    as those of a mixture that loops over the experts it needs."""
    with warnings.catch_warnings(record=True) as caught, _without_padding(model):
        warnings.simplefilter("always")
        try:
            graph = jit.trace(_Decode(model, cache_name), inputs, check_trace=False)
        except Exception:
            return None
    if any(issubclass(warning.category, jit.TracerWarning) for warning in caught):
        return None
    return graph


@contextmanager
def _without_padding(model: Any) -> Iterator[None]:
    """Embeddings forget their padding index, which acts on gradients alone. torch compares it with the size of the
    table in Python, which a recording cannot tell from a decision over values."""
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    indices = [table.padding_idx for table in tables]
    for table in tables:
        table.padding_idx = None
    try:
        yield
    finally:
        for table, index in zip(tables, indices, strict=True):
            table.padding_idx = index


def replay(graph: Any, inputs: tuple[Any, ...]) -> Any:
    """Logits [1, N, V]. Without the optimising executor, which would specialise on the first shapes seen."""
    with jit.optimized_execution(False):
        return graph(*inputs)
