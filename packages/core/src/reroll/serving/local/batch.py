"""The running requests as arrays, one row each. Row i has slot i of the cache.

Shape suffixes: R rows in use, C longest response so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reroll.serving.local.requests import Active
from reroll.serving.local.sampling import Drawn, Settings, seed_keys, uniforms

NO_TOKEN = -1


class Batch:
    """Rows 0 to `size` - 1 are running; what a step does to all of them is done to whole arrays, since a
    Python loop over rows would cost more than a small model's forward.

    Args:
        eos_token_ids: tokens that end every response.
        vocab_size: token ids are below it.
    """

    def __init__(self, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
        self.is_eos = np.zeros(vocab_size, bool)
        self.is_eos[[token for token in eos_token_ids if 0 <= token < vocab_size]] = True
        self.requests: list[Active] = []
        self.columns: dict[str, Any] = {
            "prefix": np.zeros(0, np.int64),  # tokens of the prompt
            "count": np.zeros(0, np.int64),  # tokens of the response
            "last": np.zeros(0, np.int64),  # newest token; the cache does not hold it yet
            "limit": np.zeros(0, np.int64),  # most tokens of the response
            "reserved": np.zeros(0, np.int64),  # most tokens in the cache
            "temperature": np.zeros(0, np.float64),
            "top_p": np.zeros(0, np.float64),
            "top_k": np.zeros(0, np.int64),
            "min_p": np.zeros(0, np.float64),
            "key": np.zeros(0, np.uint64),
            "stops": np.full((0, 0), NO_TOKEN, np.int64),  # [R, most stop ids of a row]
            "ids": np.zeros((0, 0), np.int64),  # [R, C]
            "logprobs": np.zeros((0, 0), np.float32),  # [R, C]
        }

    @property
    def size(self) -> int:
        return len(self.requests)

    def column(self, name: str) -> Any:
        """The rows in use of one column; a view."""
        return self.columns[name][: self.size]

    @property
    def lengths(self) -> Any:
        """Tokens that the cache holds for each row: all but the newest."""
        return self.column("prefix") + self.column("count") - 1

    def add(self, actives: list[Active]) -> None:
        """Requests with their output so far take the next rows."""
        if not actives:
            return
        first, end = self.size, self.size + len(actives)
        samplings = [active.request.sampling for active in actives]
        counts = [len(active.output_ids) for active in actives]
        values = {
            "prefix": [len(active.request.input_ids) for active in actives],
            "count": counts,
            "last": 0,  # `append` sets it
            "limit": [sampling.max_new_tokens for sampling in samplings],
            "reserved": [active.reserved for active in actives],
            "temperature": [sampling.temperature for sampling in samplings],
            "top_p": [sampling.top_p for sampling in samplings],
            "top_k": [sampling.top_k for sampling in samplings],
            "min_p": [sampling.min_p for sampling in samplings],
            "key": seed_keys([sampling.seed for sampling in samplings]),
        }
        for name, value in values.items():
            self._grow(name, end)
            self.columns[name][first:end] = value
        self._grow("stops", end, max(len(sampling.stop_token_ids) for sampling in samplings), NO_TOKEN)
        for name in ("ids", "logprobs"):
            self._grow(name, end, max(counts) + 1)
        self.columns["stops"][first:end] = NO_TOKEN
        for row, (active, sampling, count) in enumerate(zip(actives, samplings, counts, strict=True), first):
            self.columns["stops"][row, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
            self.columns["ids"][row, :count] = active.output_ids
            self.columns["logprobs"][row, :count] = active.logprobs
        self.requests.extend(actives)

    def _grow(self, name: str, rows: int, width: int = 0, fill: int = 0) -> None:
        old = self.columns[name]
        if rows <= old.shape[0] and (old.ndim == 1 or width <= old.shape[1]):
            return
        shape = [max(rows, old.shape[0] if rows <= old.shape[0] else 2 * old.shape[0])]
        if old.ndim == 2:
            shape.append(old.shape[1] if width <= old.shape[1] else max(width, 2 * old.shape[1]))
        new = np.full(shape, fill, old.dtype)
        new[tuple(slice(size) for size in old.shape)] = old
        self.columns[name] = new

    def settings(self) -> Settings:
        return Settings(*(self.column(name) for name in ("temperature", "top_p", "top_k", "min_p")))

    def uniforms(self) -> Any:
        """Random numbers [R] for the next token of each row."""
        return uniforms(self.column("key"), self.column("count"))

    def append(self, drawn: Drawn) -> tuple[Any, Any]:
        """Takes one token a row; gives which rows end with it by a stop token and which by their limit."""
        count_R = self.column("count")
        widest = int(count_R.max()) + 1
        for name, values_R in (("ids", drawn.tokens_R), ("logprobs", drawn.logprobs_R)):
            self._grow(name, self.size, widest)
            self.columns[name][np.arange(self.size), count_R] = values_R
        self.column("last")[:] = drawn.tokens_R
        count_R += 1
        stopped_R = self.is_eos[drawn.tokens_R]
        stops = self.column("stops")
        if stops.shape[1]:
            stopped_R |= (stops == drawn.tokens_R[:, None]).any(axis=1)
        return stopped_R, count_R >= self.column("limit")

    def output(self, row: int) -> list[int]:
        """The response so far."""
        found: list[int] = self.columns["ids"][row, : self.columns["count"][row]].tolist()
        return found

    def store(self, row: int) -> Active:
        """Writes the row's output back to its request."""
        active, count = self.requests[row], self.columns["count"][row]
        active.output_ids = self.columns["ids"][row, :count].copy()
        active.logprobs = self.columns["logprobs"][row, :count].copy()
        return active

    def remove(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Rows leave, and the last ones take their places: (rows that moved, where to)."""
        gone, size = set(rows), self.size - len(rows)
        targets = sorted(row for row in gone if row < size)
        sources = [row for row in range(size, self.size) if row not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.requests[target] = self.requests[source]
        if sources:
            for values in self.columns.values():
                values[targets] = values[sources]
        del self.requests[size:]
        return sources, targets
