"""Loading a causal language model in shards: each rank reads its own part of the weights and nothing else.

Imported by trainer ranks only: brings torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from reroll.models.files import ModelError


def empty_model(directory: Path) -> Any:
    """The model without weights: parameters on the meta device in float32, buffers, which are computed from the
    configuration and are small, as they are."""
    from accelerate import init_empty_weights

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    model.eval()
    return model


def blocks(model: Any) -> list[torch.nn.Module]:
    """The model's layers: what is gathered, and computed again, as one. Those that its class says must stay whole, or
    the longest list of modules."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if found:
        return found
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(map(list, lists), key=len) if lists else []


def materialise(module: torch.nn.Module, device: torch.device) -> None:
    """Gives parameters on the meta device memory, uninitialised, and brings buffers to the device."""
    module._apply(  # type: ignore[no-untyped-call]
        lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    )


def load_shards(model: Any, directory: Path) -> None:
    """Fills every parameter, or the rank's shard of it, and every persistent buffer from the safetensors files.

    Raises:
        ModelError: a tensor is missing or has another shape.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    with Weights(directory, model) as weights, torch.no_grad():
        filled: set[int] = set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) in filled:
                continue
            filled.add(id(tensor))
            found = weights.find(name, tuple(tensor.shape))
            if isinstance(tensor, DTensor):
                shape, offset = compute_local_shape_and_global_offset(
                    tensor.shape, tensor.device_mesh, tensor.placements
                )
                place = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
                if all(shape):
                    tensor.to_local().copy_(found[place])
            else:
                tensor.copy_(found[:] if tensor.ndim else found[...])


class Weights:
    """The tensors of a model directory under the names that the model has for them, read in slices."""

    def __init__(self, directory: Path, model: Any) -> None:
        self._directory = directory
        self._open = ExitStack()
        self._found: dict[str, tuple[Any, str]] = {}
        """Name → file, and the tensor's name in it."""
        self._converted: dict[str, str] = {}
        """Name → one of the stored tensors that it is computed from."""
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ModelError(
                f"{directory} holds no *.safetensors, which several ranks read their parts from; save the model once "
                "with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)"
            )
        rename = _renaming(model)
        for path in paths:
            file = self._open.enter_context(safe_open(path, framework="pt"))
            for stored in file.keys():  # noqa: SIM118 (no dictionary)
                name, conversion = rename(stored)
                if conversion is None:
                    self._found[name] = (file, stored)
                else:
                    self._converted.setdefault(name, stored)

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def find(self, name: str, shape: tuple[int, ...]) -> Any:
        """A slice reader of the tensor."""
        if name in self._converted:
            raise ModelError(
                f"{self._directory}: {name} is put together from several stored tensors, such as "
                f"{self._converted[name]}, as the experts of a mixture are, and a rank cannot read its part of that: "
                "use trainer.num_ranks = 1 on a CPU in float32, or a dense model"
            )
        if name not in self._found:
            raise ModelError(f"the weights in {self._directory} do not fit its config.json: {name} is missing")
        file, stored = self._found[name]
        found = file.get_slice(stored)
        if tuple(found.get_shape()) != shape:
            raise ModelError(
                f"the weights in {self._directory} do not fit its config.json: {name} has shape "
                f"{tuple(found.get_shape())} instead of {shape}"
            )
        return found


def _renaming(model: Any) -> Callable[[str], tuple[str, str | None]]:
    """Name in a file → name in the model, and a pattern where it is only one part of what the model has: the rules by
    which transformers itself reads files that older versions of it, or others, wrote."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    return partial(
        rename_source_key,
        weight_renamings=renamings,
        weight_converters=converters,
        base_model_prefix=model.base_model_prefix,
        meta_state_dict=model.state_dict(),
    )
