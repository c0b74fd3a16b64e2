"""Keys and values of all running requests, one slot a request, and attention over them.

The model sees one sequence of N tokens per step, [1, N]: first one token for each running request, then
the prompts that join, padded to rectangles. Linear layers, norms and rotary embeddings act on tokens
alone, so that only attention has to know which token belongs to whom; it is given here.

Shape suffixes: S slots, T time, K key-value heads, H query heads, D head dimension, N tokens of a step.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "reroll_slots"
"""Name under which transformers finds `_attention`."""

BLOCK = 64
"""The time axis grows in multiples of this many tokens."""

KEEP_TOKENS = 16384
"""A cache of up to this many tokens is never made smaller."""


class Prompts(NamedTuple):
    """Distinct prompts of similar length that join in one step.

    Attributes:
        slot: of the first; the others follow.
        rows, width: the rectangle of tokens; shorter prompts are padded on the right, where causal
            attention lets no real token see the padding.
        start: index of the rectangle's first token among the step's N.
        shared: where requests have a prompt in common, the rectangle's row for each of their slots, int64; None
            where every row has one slot.
    """

    slot: int
    rows: int
    width: int
    start: int
    shared: Any


class Layout(NamedTuple):
    """Which of a step's N tokens is whose.

    Attributes:
        rows: running requests; their tokens come first and their slots are 0 to rows - 1.
        length: time steps that the longest of them attends to, the new token included.
        positions: cache position of each one's new token, int64 [rows].
        mask: 0 where a row has a token and -inf beyond, float [rows, 1, 1, length].
        prompts: rectangles of joining requests, in slot order.
    """

    rows: int
    length: int
    positions: Any
    mask: Any
    prompts: list[Prompts]


class HeadShape(NamedTuple):
    """Key-value heads of one layer and their dimensions."""

    heads: int
    key: int
    value: int

    @property
    def numbers(self) -> int:
        """Numbers that one token takes."""
        return self.heads * (self.key + self.value)


class FlatCache(Cache):  # type: ignore[misc]
    """Base of what stands in for a transformers cache when the sequence axis holds all requests."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def attend(self, query: Any, key: Any, value: Any, scaling: float | None, options: dict[str, Any]) -> Any:
        """Attention output [1, N, H, D] for `query` [1, H, N, D]; called right after `update`."""
        raise NotImplementedError


class SlotCache(FlatCache):
    """The cache itself. Slots 0 to rows - 1 are in use; whoever empties one moves the last there."""

    def __init__(self, shapes: list[HeadShape], dtype: Any, max_tokens: int) -> None:
        super().__init__()
        self.shapes = shapes
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.slots = 0
        self.length = 0
        self.layout = Layout(0, 0, None, None, [])
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.clear()

    def clear(self) -> None:
        """Gives the memory back; nothing may be running."""
        self._allocate(0, 0, 0, 0)

    def fit(
        self, slots: int, length: int, used_slots: int, used_length: int, most_length: int, shrink: bool = True
    ) -> None:
        """Makes room for `slots` requests of `length` tokens.

        Sizes double, so that copying costs less than a token's own work; where the doubled rectangle
        would pass `max_tokens` the exact one is taken. A rectangle four times too large shrinks.

        Args:
            used_slots, used_length: the part whose content is kept.
            most_length: what the longest request may come to; growing beyond it would be waste.
            shrink: whether a rectangle that is large enough may be made smaller.
        """
        length = min(_blocks(length), max(most_length, length))
        enough = slots <= self.slots and length <= self.length
        large = self.slots * self.length
        if enough and (not shrink or large <= KEEP_TOKENS or large <= 4 * slots * length):
            return
        new_slots, new_length = slots, length
        if not enough:
            new_slots = self.slots if slots <= self.slots else max(slots, 2 * self.slots)
            new_length = self.length if length <= self.length else min(2 * length, max(most_length, length))
            if new_slots * new_length > max(KEEP_TOKENS, 4 * slots * length):
                new_slots, new_length = slots, length
            if new_slots * new_length > self.max_tokens:
                new_slots, new_length = slots, length
        self._allocate(new_slots, new_length, used_slots, used_length)

    def _allocate(self, slots: int, length: int, used_slots: int, used_length: int) -> None:
        # Zeros, not empty memory: masked positions still enter a product with weight 0, and 0 * NaN is NaN.
        for layer, shape in enumerate(self.shapes):
            for stores, dimension in ((self.keys, shape.key), (self.values, shape.value)):
                new_SKTD = torch.zeros(slots, shape.heads, length, dimension, dtype=self.dtype)
                if layer == len(stores):
                    stores.append(new_SKTD)
                    continue
                if used_slots and used_length:
                    new_SKTD[:used_slots, :, :used_length] = stores[layer][:used_slots, :, :used_length]
                stores[layer] = new_SKTD
        self.slots, self.length = slots, length

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copies the first `length` positions of slots `sources` over slots `targets`."""
        source, target = torch.tensor(sources), torch.tensor(targets)
        for stores in (self.keys, self.values):
            for store_SKTD in stores:
                store_SKTD[target, :, :length] = store_SKTD[source, :, :length]

    def begin(self, layout: Layout) -> None:
        """The next forward has this layout."""
        self.layout = layout
        self._writes: dict[int, Any] = {}

    def write_index(self, heads: int) -> Any:
        """Where the rows' new tokens go in a store seen as [S*K*T, D], int64 [rows*K]; layers with equally
        many heads share it."""
        if heads not in self._writes:
            slot_head = torch.arange(self.layout.rows * heads).view(-1, heads)
            self._writes[heads] = (slot_head * self.length + self.layout.positions[:, None]).view(-1)
        return self._writes[heads]

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Stores the step's keys and values [1, K, N, D] and gives them back unchanged."""
        layout = self.layout
        self._layer = (self.keys[layer_idx], self.values[layer_idx])
        for store_SKTD, new_1KND in zip(self._layer, (key_states, value_states), strict=True):
            if layout.rows:
                store_rows(store_SKTD, new_1KND[:, :, : layout.rows], self.write_index(store_SKTD.shape[1]))
            for prompts in layout.prompts:
                part = _rectangle(new_1KND, prompts)
                if prompts.shared is not None:
                    part = part[prompts.shared]
                store_SKTD[prompts.slot : prompts.slot + len(part), :, : prompts.width] = part
        return key_states, value_states

    def attend(self, query: Any, key: Any, value: Any, scaling: float | None, options: dict[str, Any]) -> Any:
        layout, (keys_SKTD, values_SKTD) = self.layout, self._layer
        heads, dimension = query.shape[1], value.shape[3]
        parts = []
        if layout.rows:
            parts.append(attend_rows(query[:, :, : layout.rows], keys_SKTD, values_SKTD, layout.mask, scaling))
        for prompts in layout.prompts:
            out = scaled_dot_product_attention(
                _rectangle(query, prompts),
                _rectangle(key, prompts),
                _rectangle(value, prompts),
                is_causal=True,
                scale=scaling,
                enable_gqa=heads != key.shape[1],
            )
            parts.append(out.transpose(1, 2).reshape(1, prompts.rows * prompts.width, heads, dimension))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def store_rows(store_SKTD: Any, new_1KND: Any, index: Any) -> None:
    """Writes one token a row, [1, K, rows, D], to `index` of the store seen as [S*K*T, D]."""
    dimension = store_SKTD.shape[3]
    store_SKTD.view(-1, dimension).index_copy_(0, index, new_1KND[0].transpose(0, 1).reshape(-1, dimension))


def attend_rows(query_1HND: Any, keys_SKTD: Any, values_SKTD: Any, mask: Any, scaling: float | None) -> Any:
    """Attention [1, rows, H, D] of one token a row over slots 0 to rows - 1; `mask` is [rows, 1, 1, length]."""
    rows, length = mask.shape[0], mask.shape[3]
    heads, kv_heads = query_1HND.shape[1], keys_SKTD.shape[1]
    # Query heads that share a key-value head become its query positions: nothing is repeated.
    out = scaled_dot_product_attention(
        query_1HND[0].transpose(0, 1).reshape(rows, kv_heads, heads // kv_heads, query_1HND.shape[3]),
        keys_SKTD[:rows, :, :length],
        values_SKTD[:rows, :, :length],
        attn_mask=mask,
        scale=scaling,
    )
    return out.reshape(1, rows, heads, values_SKTD.shape[3])


def _rectangle(states_1HND: Any, prompts: Prompts) -> Any:
    """The view [count, H, width, D] of the prompts' part of [1, H, N, D]."""
    end = prompts.start + prompts.rows * prompts.width
    part = states_1HND[0, :, prompts.start : end]
    return part.unflatten(1, (prompts.rows, prompts.width)).transpose(0, 1)


def _blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


_serving = threading.local()


def serve_with(cache: FlatCache) -> None:
    """Attention of the forwards that this thread runs goes to `cache`. transformers looks attention up
    by name in one table for the whole process, and several engines may live in one."""
    _serving.cache = cache


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **options: Any
) -> tuple[Any, None]:
    cache: FlatCache = _serving.cache
    return cache.attend(query, key, value, scaling, options), None


# Without a mask function of the same name, transformers builds no mask: the layout takes its place.
ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
