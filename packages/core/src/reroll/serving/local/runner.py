"""The model's forward over one step's tokens. Shape suffixes: R rows, N tokens of a step, V vocabulary."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import torch

from reroll.api import EngineError
from reroll.serving.local.cache import ATTENTION, Layout, Prompts, SlotCache, serve_with
from reroll.serving.local.graph import record, replay
from reroll.serving.local.suitability import Probe, check_config, check_equal, context_length

PADDING = 1.25
"""A rectangle of prompts holds at most this many tokens for each real one."""

CHECK_SEED, CHECK_LENGTHS, CHECK_STEPS, HEAD_START = 20, (11, 2, 7), 5, 2
"""Sequences that the start compares with the plain forward: prompts, then decode steps. The first joins two steps
before the others, and is alone in the second of them."""


class Joining(NamedTuple):
    """A prompt and how many requests join with it: it is computed once, and the keys and values go to all of them.

    Nothing of it outlives the step, so that no request can get what other weights have computed.
    """

    ids: Any
    requests: int


def rectangles(joining: list[Joining], slot: int, start: int) -> list[Prompts]:
    """Cuts prompts, given by ascending length, into rectangles without much padding.

    Args:
        slot, start: slot and step index of the first prompt's first token.
    """
    lengths = [len(ids) for ids, _ in joining]
    found: list[Prompts] = []
    first = 0
    while first < len(lengths):
        real, after = lengths[first], first + 1
        while after < len(lengths) and lengths[after] * (after - first + 1) <= PADDING * (real + lengths[after]):
            real += lengths[after]
            after += 1
        width = lengths[after - 1]
        rows, requests = after - first, [prompt.requests for prompt in joining[first:after]]
        shared = None
        if sum(requests) > rows:
            shared = torch.repeat_interleave(torch.tensor(requests))
        found.append(Prompts(slot, rows, width, start, shared))
        slot += sum(requests)
        start += rows * width
        first = after
    return found


class ModelRunner:
    """A causal language model with a slot cache.

    Args:
        model: any causal language model of transformers, in evaluation mode on the CPU.
        max_context_len: most tokens of a request; None takes all that the model was made for.
        cache_bytes: most memory for keys and values.
        use_graph: whether decode steps replay a recording of the forward, where the model allows one.

    Raises:
        EngineError: the model cannot be served exactly.
    """

    def __init__(self, model: Any, max_context_len: int | None, cache_bytes: int, use_graph: bool = True) -> None:
        self.model = model
        self.use_graph = use_graph
        self.dtype = model.dtype
        self.context_len = context_length(model.config, max_context_len)
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])
        check_config(model.config, self.context_len)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._picks_logits = "logits_to_keep" in parameters
        if "position_ids" not in parameters:
            raise EngineError(f"{type(model).__name__} takes no position_ids, without which requests cannot be mixed")
        with torch.inference_mode():
            self._start(cache_bytes)

    def _start(self, cache_bytes: int) -> None:
        ids = self._check_ids()
        plain = [self.model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in ids]
        self.model.set_attn_implementation(ATTENTION)
        probe = Probe()
        serve_with(probe)
        self._call(torch.tensor(ids[:1]), torch.arange(len(ids[0]))[None], probe, 0)
        shapes = probe.head_shapes()
        token_bytes = sum(shape.numbers for shape in shapes) * self.dtype.itemsize
        self.cache_tokens = cache_bytes // token_bytes
        self.cache = SlotCache(shapes, self.dtype, self.cache_tokens)
        self.graph: Any = None
        self._check(plain, ids)
        if self.use_graph:
            self._record(plain, ids)
        self.cache.clear()

    def _check(self, plain: list[Any], ids: list[list[int]]) -> None:
        for expected, served in zip(plain, self._served_logits(ids), strict=True):
            check_equal(expected[-len(served) :], served, self.dtype)

    def _record(self, plain: list[Any], ids: list[list[int]]) -> None:
        """Records a decode step of two rows, whose sizes differ from all that the check then replays. The
        recording is dropped if it fails the check: the direct steps have passed it."""
        rows, length = 2, min(5, self.context_len)
        self.cache.fit(rows, length, 0, 0, length)
        positions = torch.tensor([length - 1, 0])
        mask = torch.zeros(rows, 1, 1, length, dtype=self.dtype)
        self.cache.begin(Layout(rows, length, positions, mask, []))
        inputs = self._graph_inputs(torch.tensor([[0, 1]]), positions[None], mask)
        self.graph = record(self.model, self._cache_name, inputs)
        try:
            self._check(plain, ids)
        except (EngineError, RuntimeError):
            self.graph = None

    def _check_ids(self) -> list[list[int]]:
        generator = np.random.default_rng(CHECK_SEED)
        room = max(1, self.context_len - CHECK_STEPS - HEAD_START)
        lengths = [min(length, room) + _checked_steps(row) for row, length in enumerate(CHECK_LENGTHS)]
        return [generator.integers(0, self.vocab_size, length).tolist() for length in lengths]

    def _served_logits(self, ids: list[list[int]]) -> list[Any]:
        """Logits [steps + 1, V] of each sequence's last positions, from one step with a prompt alone,
        one where the others join, and decode steps."""
        prompts = [np.array(row[: len(row) - _checked_steps(index)]) for index, row in enumerate(ids)]
        order = [0, *sorted(range(1, len(ids)), key=lambda row: len(prompts[row]))]
        found: dict[int, list[Any]] = {}
        for joining in (order[:1], [], order[1:], *[[]] * CHECK_STEPS):
            held = np.array([len(prompts[row]) + len(given) - 1 for row, given in found.items()], np.int64)
            last = np.array([ids[row][at] for row, at in zip(found, held, strict=True)], np.int64)
            logits_RV = self.step(last, held, [Joining(prompts[row], 1) for row in joining], self.context_len)
            found.update({row: [] for row in joining})
            for given, logits_V in zip(found.values(), logits_RV, strict=True):
                given.append(logits_V)
        return [torch.stack(found[row]) for row in range(len(ids))]

    def step(self, last_R: Any, lengths_R: Any, joining: list[Joining], most_length: int) -> Any:
        """One token further for the running requests, and the prompts of those that join.

        Args:
            last_R: the token of each running request that is not in the cache yet, int64.
            lengths_R: tokens that each has in the cache, int64; both are in slot order.
            joining: distinct prompts by ascending length; their requests take the next slots.
            most_length: what the longest of all requests may come to.

        Returns:
            Logits [R, V] of the running and then of the joining requests' next tokens.
        """
        rows, requests = len(last_R), [prompt.requests for prompt in joining]
        groups = rectangles(joining, rows, rows)
        length = int(lengths_R.max()) + 1 if rows else 0
        widest = groups[-1].width if groups else 0
        # Requests that come back over several steps need the slots which the first of these steps leaves unused.
        shrink = not groups
        self.cache.fit(rows + sum(requests), max(length, widest), rows, max(length - 1, 0), most_length, shrink)
        tokens_N, positions_N, picked = _flatten(last_R, lengths_R, joining, groups)
        positions = torch.from_numpy(positions_N)
        mask = None
        if rows:
            held = torch.arange(length) <= positions[:rows, None]
            mask = torch.zeros(rows, length, dtype=self.dtype).masked_fill_(~held, -torch.inf)[:, None, None]
        self.cache.begin(Layout(rows, length, positions[:rows], mask, groups))
        serve_with(self.cache)
        ids = torch.from_numpy(tokens_N)[None]
        if groups:
            logits_RV = self._call(ids, positions[None], self.cache, torch.from_numpy(picked))
            if sum(requests) > len(requests):
                logits_RV = logits_RV.repeat_interleave(torch.tensor([1] * rows + requests), dim=0)
            return logits_RV
        if self.graph is None:
            return self._call(ids, positions[None], self.cache, 0)
        return replay(self.graph, self._graph_inputs(ids, positions[None], mask))[0]

    def _graph_inputs(self, ids_1N: Any, positions_1N: Any, mask: Any) -> tuple[Any, ...]:
        cache = self.cache
        indices = tuple(cache.write_index(shape.heads) for shape in cache.shapes)
        return ids_1N, positions_1N, mask, indices, tuple(cache.keys), tuple(cache.values)

    def _call(self, ids_1N: Any, positions_1N: Any, cache: Any, keep: Any) -> Any:
        arguments = {self._cache_name: cache, "use_cache": True}
        if self._picks_logits:
            arguments["logits_to_keep"] = keep
        logits = self.model(input_ids=ids_1N, position_ids=positions_1N, **arguments).logits[0]
        return logits if self._picks_logits or isinstance(keep, int) else logits[keep]


def _checked_steps(row: int) -> int:
    """Decode steps of the start's sequence `row`."""
    return CHECK_STEPS + (HEAD_START if row == 0 else 0)


def _flatten(last_R: Any, lengths_R: Any, joining: list[Joining], groups: list[Prompts]) -> tuple[Any, Any, Any]:
    """Token ids and positions [N] of a step, and the index of each row's and each prompt's last token."""
    rows = len(last_R)
    if not groups:
        return last_R, lengths_R, None
    size = groups[-1].start + groups[-1].rows * groups[-1].width
    # Padding repeats token 0: whatever it gives is never attended to.
    tokens_N, positions_N = np.zeros(size, np.int64), np.empty(size, np.int64)
    tokens_N[:rows], positions_N[:rows] = last_R, lengths_R
    picked, prompts = [*range(rows)], iter(joining)
    for group in groups:
        for index in range(group.rows):
            ids, start = next(prompts).ids, group.start + index * group.width
            tokens_N[start : start + len(ids)] = ids
            positions_N[start : start + group.width] = np.arange(group.width)
            picked.append(start + len(ids) - 1)
    return tokens_N, positions_N, np.array(picked)
