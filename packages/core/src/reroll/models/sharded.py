"""Loading a causal language model in shards: each rank reads its own part of the weights and nothing else.

Imported by trainer ranks only: brings torch and transformers.
"""

from __future__ import annotations

from contextlib import ExitStack
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
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
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

    with Weights(directory, model.base_model_prefix) as weights, torch.no_grad():
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
    """The tensors of a model directory, read in slices."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = f"{prefix}." if prefix else ""
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ModelError(
                f"{directory} holds no *.safetensors, which several ranks read their parts from; save the model once "
                "with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)"
            )
        for path in paths:
            file = self._open.enter_context(safe_open(path, framework="pt"))
            self._files.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def find(self, name: str, shape: tuple[int, ...]) -> Any:
        """A slice reader of the tensor. Files of a model without its head lack the head's prefix."""
        for known in (name, name.removeprefix(self._prefix), self._prefix + name):
            if known in self._files:
                found = self._files[known].get_slice(known)
                if tuple(found.get_shape()) != shape:
                    raise ModelError(
                        f"the weights in {self._directory} do not fit its config.json: {name} has shape "
                        f"{tuple(found.get_shape())} instead of {shape}"
                    )
                return found
        raise ModelError(f"the weights in {self._directory} do not fit its config.json: {name} is missing")
