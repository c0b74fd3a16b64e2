"""Which models the embedded engine can serve exactly; the others are refused at start.

A model's configuration tells of what short probes cannot see (windows, position scaling that begins late),
one forward under a probe tells how it calls attention, and a comparison with the plain forward the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from reroll.api import EngineError
from reroll.serving.local.cache import FlatCache, HeadShape

KNOWN_OPTIONS = frozenset({"dropout", "position_ids", "use_cache", "output_attentions", "sliding_window", "layer_idx"})
"""Arguments of an attention call that change nothing here: windows were judged by the configuration."""

REMEDY = "serve it with another engine, such as sglang"


def context_length(config: Any, wanted: int | None) -> int:
    """Tokens that a request may hold: `wanted`, or all that the model was made for."""
    text = config.get_text_config()
    if getattr(text, "num_attention_heads", None) is None:
        raise EngineError(f"model_type {config.model_type!r} keeps other caches than those of attention; {REMEDY}")
    longest: int | None = getattr(text, "max_position_embeddings", None)
    if wanted is None and longest is None:
        raise EngineError(
            "max_context_len of serving.engine is not set and the model's configuration names no limit; set it"
        )
    if wanted is not None and longest is not None and wanted > longest:
        raise EngineError(
            f"max_context_len of serving.engine is {wanted}, but the model has {longest} positions; lower it"
        )
    found = longest if wanted is None else wanted
    assert found is not None
    return found


def check_config(config: Any, context_len: int) -> None:
    """EngineError if the configuration asks for something that slots with full attention do not give."""
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise EngineError(f"model_type {config.model_type!r} is an encoder-decoder; {REMEDY}")
    kinds = set(getattr(text, "layer_types", None) or ())
    other = kinds - {"full_attention", "sliding_attention"}
    if other:
        raise EngineError(f"layer_types of the model include {sorted(other)}, which keep other caches; {REMEDY}")
    window = getattr(text, "sliding_window", None)
    windowed = "sliding_attention" in kinds or (not kinds and getattr(text, "use_sliding_window", True))
    if windowed and window is not None and window < context_len:
        raise EngineError(
            f"the model's sliding_window is {window}, less than the context of {context_len} tokens; "
            f"set max_context_len of serving.engine to at most {window} or {REMEDY}"
        )
    _check_rope(text, context_len)


def _check_rope(text: Any, context_len: int) -> None:
    parameters = getattr(text, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer.
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    for found in sets:
        kind = found.get("rope_type", "default")
        start = int(found.get("original_max_position_embeddings") or text.max_position_embeddings)
        if kind in ("dynamic", "longrope") and context_len > start:
            raise EngineError(
                f"rope_type {kind!r} turns all of a batch by its longest request once that passes {start} tokens; "
                f"set max_context_len of serving.engine to at most {start} or {REMEDY}"
            )


class Probe(FlatCache):
    """Runs one plain causal sequence and notes how the model uses cache and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int, HeadShape] = {}
        self.attended = 0
        self.unknown: set[str] = set()

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        self.shapes[layer_idx] = HeadShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
        self._stored = (key_states, value_states)
        return key_states, value_states

    def attend(self, query: Any, key: Any, value: Any, scaling: float | None, options: dict[str, Any]) -> Any:
        self.attended += 1
        self.unknown |= {name for name, given in options.items() if _given(given) and name not in KNOWN_OPTIONS}
        stored_key, stored_value = self._stored
        if not (torch.equal(key, stored_key) and torch.equal(value, stored_value)):
            raise EngineError(f"the model attends to other keys and values than it caches; {REMEDY}")
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        return out.transpose(1, 2)

    def head_shapes(self) -> list[HeadShape]:
        """Shapes of all layers, or EngineError if the model does not use cache and attention in step."""
        layers = sorted(self.shapes)
        if not layers or layers != list(range(len(layers))) or self.attended != len(layers):
            raise EngineError(
                f"the model attended {self.attended} times and stored keys of layers {layers}; only models whose "
                f"every layer does both once, through transformers' attention interface, can be served; {REMEDY}"
            )
        if self.unknown:
            raise EngineError(f"the model's attention uses {sorted(self.unknown)}; {REMEDY}")
        return [self.shapes[layer] for layer in layers]


def _given(value: Any) -> bool:
    return value is not None and value is not False


def check_equal(plain: Any, served: Any, dtype: Any) -> None:
    """EngineError if log-probabilities [N, V] of the plain forward and of the engine differ by more than
    rounding does."""
    allowed = 1e-3 if dtype == torch.float32 else 0.25
    difference = (torch.log_softmax(plain.float(), -1) - torch.log_softmax(served.float(), -1)).abs().max().item()
    if not difference <= allowed:
        raise EngineError(
            f"log-probabilities of the engine differ from the model's plain forward by {difference:.2g} "
            f"(allowed: {allowed}), so it cannot serve this model exactly; {REMEDY}"
        )
