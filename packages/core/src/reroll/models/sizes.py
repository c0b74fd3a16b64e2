"""The shapes of a model's tensors, read from the headers of its files. No tensor is read, and torch is not needed."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reroll.models.files import BUILTIN, ModelError, ModelFiles, located, resolve_model
from reroll.models.gguf_header import gguf_tensors

NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of a header whose tensors hold one parameter an element."""
META = "__metadata__"
"""What stands beside the tensors in a header."""
MOST_HEADER_BYTES = 100_000_000
"""What the format allows."""
COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|rope_freqs\.weight|attn\.masked_bias)$")
"""Stored by some, and computed from the configuration by those who load them: no parameters."""
LAYER = re.compile(r"^(.*?\.\d+)\.|^(blk\.\d+)\.")


@dataclass(frozen=True)
class ModelSizes:
    """Tensor name → shape, each tensor once, and what the configuration says of the model's inside.

    Attributes:
        dtype: in which the files hold the tensors; None where they differ.
        layers, hidden, vocabulary: None where the configuration does not say.
    """

    tensors: Mapping[str, tuple[int, ...]]
    dtype: str | None
    layers: int | None
    hidden: int | None
    vocabulary: int | None

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.tensors.values()))

    def largest_shard(self, ranks: int) -> int:
        """Parameters of rank 0, which has the most: every tensor is cut along its first dimension into `ranks` parts
        of equal length, of which the last may be shorter or empty."""
        return sum(
            math.ceil(shape[0] / ranks) * math.prod(shape[1:]) if shape else 1 for shape in self.tensors.values()
        )

    def units(self) -> tuple[int, int]:
        """Parameters of the largest layer, and of everything that is in no layer."""
        layers: dict[str, int] = {}
        others = 0
        for name, shape in self.tensors.items():
            if found := LAYER.match(name):
                layer = found[1] or found[2]
                layers[layer] = layers.get(layer, 0) + math.prod(shape)
            else:
                others += math.prod(shape)
        return max(layers.values(), default=0), others


def model_sizes(path: str) -> ModelSizes:
    """Of what `model.path` means. ModelError where the files do not tell: they are absent, of another format, or hold
    quantised tensors, whose number of parameters is not that of their elements."""
    if not path.startswith(BUILTIN) and (found := located(path)).suffix == ".gguf":
        tensors, told = gguf_tensors(found)
        return ModelSizes(
            {name: shape for name, shape in tensors.items() if not COMPUTED.search(name)},
            "float32",  # as it is converted
            told.get("block_count"),
            told.get("embedding_length"),
            next((shape[0] for name, shape in tensors.items() if name == "token_embd.weight"), None),
        )
    files = resolve_model(path)
    return _of_directory(files)


def _of_directory(files: ModelFiles) -> ModelSizes:
    text: Mapping[str, Any] = files.config.get("text_config") or files.config
    kinds: set[str] = set()
    tensors: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(files.directory):
        for name, (kind, shape) in safetensors_header(path).items():
            if COMPUTED.search(name):
                continue
            if kind not in NAMES:
                raise ModelError(f"{path} holds {name} as {kind}: it is quantised")
            kinds.add(kind)
            tensors[name] = shape
    if text.get("tie_word_embeddings") and len(tensors) > 1:
        tensors.pop("lm_head.weight", None)  # a second name of the input embedding
    return ModelSizes(
        tensors,
        NAMES[kinds.pop()] if len(kinds) == 1 else None,
        _number(text, "num_hidden_layers", "n_layer"),
        _number(text, "hidden_size", "n_embd"),
        _number(text, "vocab_size"),
    )


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    found = next((config[name] for name in names if name in config), None)
    return found if isinstance(found, int) and found > 0 else None


def _weight_files(directory: Path) -> list[Path]:
    """Those that transformers reads: what the index names, or the one file."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            return [directory / Path(name).name for name in names]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read: {error!r}") from None
    whole = directory / "model.safetensors"
    found = [whole] if whole.is_file() else sorted(directory.glob("*.safetensors"))
    if not found:
        raise ModelError(f"{directory} holds no *.safetensors, whose headers tell sizes")
    return found


def safetensors_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor name → its type, as the file writes it, and its shape. ModelError for what is no such file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MOST_HEADER_BYTES:
                raise ValueError(f"its header would have {length} bytes")
            header = json.loads(file.read(length))
        found = {name: (str(item["dtype"]), _shape(item["shape"])) for name, item in header.items() if name != META}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise ModelError(f"{path} is no safetensors file that can be read: {error}") from None
    return found


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError(f"a shape is {value!r}")
    return tuple(value)
