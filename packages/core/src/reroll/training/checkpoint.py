"""The trainer's part of a checkpoint: parameters, optimizer state and random states, by torch.distributed.checkpoint.

Parameters and moments are stored under the model's own names, in the shards that ranks hold, and are read back by any
number of ranks. `optimizer.<parameter>.<key>` holds AdamW's state of a parameter, `random.<rank>` the states of a
rank's random generators.
"""

from __future__ import annotations

import ast
import io
import os
import random
import tempfile
import warnings
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save as save_state_in_background
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from reroll.api import TrainingError
from reroll.training.export import SHARD_BYTES, finish, shard_names
from reroll.training.step import PolicyTrainer
from reroll.training.tensors import buckets, named_tensors, num_bytes

MODEL, OPTIMIZER, RANDOM = "model.", "optimizer.", "random."


def save(trainer: PolicyTrainer, folder: Path, background: bool) -> Future[None]:
    """Writes into `folder`, which exists. The state is copied before this returns where it is written in the
    `background`; the future is done when every rank has written."""
    ranks = trainer.ranks
    state = _state(trainer) | {f"{RANDOM}{ranks.rank}": _random_state()}
    group = {"process_group": ranks.writing, "no_dist": not ranks.sharded}
    done: Future[None] = Future()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a single process is a single process
        if not background:
            save_state(state, checkpoint_id=folder, **group)
            done.set_result(None)
            return done
        saving: Any = save_state_in_background(state, checkpoint_id=folder, **group)
    saving.add_done_callback(lambda saved: _pass_on(saved, done))
    return done


def _pass_on(saved: Future[Any], done: Future[None]) -> None:
    error = saved.exception()
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


def restore(trainer: PolicyTrainer, folder: Path, version: int) -> None:
    """Reads this rank's part of everything; the trainer goes on at `version`."""
    ranks = trainer.ranks
    known: dict[str, Any] = FileSystemReader(folder).read_metadata().state_dict_metadata
    _make_optimizer_state(trainer, known)
    state = _state(trainer)
    _check_same_model(folder, {name: item for name, item in known.items() if not name.startswith(RANDOM)}, state)
    mine = f"{RANDOM}{ranks.rank}"
    if mine in known:  # with more ranks than before, the new ones keep the states of their own seeds
        state[mine] = torch.empty(known[mine].size, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_state(state, checkpoint_id=folder, process_group=ranks.writing, no_dist=not ranks.sharded)
    trainer.version = version
    if mine in state:
        _set_random_state(state[mine])


def _state(trainer: PolicyTrainer) -> dict[str, Any]:
    """Everything that is stored, by name. Loading fills the tensors in place."""
    parameters = dict(trainer.policy.model.named_parameters())
    state: dict[str, Any] = {MODEL + name: tensor for name, tensor in named_tensors(trainer.policy.model).items()}
    for name, parameter in parameters.items():
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            state[f"{OPTIMIZER}{name}.{key}"] = value
    return state


def _make_optimizer_state(trainer: PolicyTrainer, known: Container[str]) -> None:
    """What AdamW makes at the first step of the parameters that had one: all or, before any, none; and none of a
    parameter that the model does not use."""
    trainer.optimizer.state.clear()
    for name, parameter in trainer.policy.model.named_parameters():
        if f"{OPTIMIZER}{name}.step" in known:
            trainer.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter.detach()),
                "exp_avg_sq": torch.zeros_like(parameter.detach()),
            }


def _check_same_model(folder: Path, known: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """TrainingError unless names and shapes are the same on both sides: what was left over would be lost unnoticed."""
    wrong = [name for name in state if name not in known]
    if wrong:
        fault = f"lacks {_listed(wrong)}"
    elif wrong := [name for name in known if name not in state]:
        fault = f"holds {_listed(wrong)}, which this model has not"
    elif wrong := [name for name, value in state.items() if value.shape != known[name].size]:
        shapes = f"{list(known[wrong[0]].size)} instead of {list(state[wrong[0]].shape)}"
        fault = f"holds {_listed(wrong)} with shape {shapes}"
    else:
        return
    raise TrainingError(f"the checkpoint {folder} {fault}: it is of another model; set model.path to the one it is of")


def _listed(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _random_state() -> Tensor:
    """The states of this process's generators, as the bytes of a file."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": repr(random.getstate())}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _set_random_state(content: Tensor) -> None:
    state = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
    torch.set_rng_state(state["torch"])
    random.setstate(ast.literal_eval(state["python"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def export_checkpoint(
    folder: Path,
    source: Path,
    directory: Path,
    dtype: str = "float32",
    chat_template: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """The policy of a checkpoint as a Hugging Face directory, one file's tensors at a time.

    Args:
        source: the starting checkpoint, for configuration and tokenizer.
        chat_template: the one that the model was trained with, where it is not that of `source`.
    """
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    shapes: dict[str, Any] = {
        name.removeprefix(MODEL): item for name, item in metadata.items() if name.startswith(MODEL)
    }
    empty = {name: torch.empty(item.size, dtype=item.properties.dtype, device="meta") for name, item in shapes.items()}
    names = buckets(empty, shard_bytes)
    files = shard_names(len(names))
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    wanted: torch.dtype = getattr(torch, dtype)
    size = 0
    for group, file in zip(names, files, strict=True):
        state: dict[str, Any] = {MODEL + name: torch.empty_like(empty[name], device="cpu") for name in group}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_state(state, checkpoint_id=folder, no_dist=True)
        tensors = {name: _as(state[MODEL + name], wanted) for name in group}
        size += sum(map(num_bytes, tensors.values()))
        save_file(tensors, partial / file, metadata={"format": "pt"})
    finish(partial, source, names, files, size, dtype, chat_template)
    partial.chmod(0o777 & ~_umask())
    if directory.exists():
        directory.rmdir()  # empty, or this says that it is not
    partial.rename(directory)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
