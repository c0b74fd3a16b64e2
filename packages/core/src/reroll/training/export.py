"""Hugging Face directories: safetensors files with their index, configuration, tokenizer and chat template.

The parts that only touch files need no torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from reroll.training.ranks import Ranks

SHARD_BYTES = 2 * 1024**3
"""Of one safetensors file; what is held of the model at most while it is written."""
COPIED = ("tokenizer", "chat_template", "special_tokens", "vocab", "merges", "generation_config", "added_tokens")


def export_hf(
    tensors: Mapping[str, Tensor],
    directory: Path,
    source: Path,
    ranks: Ranks,
    chat_template: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes the tensors, which ranks gather together, with everything else that stands in `source`. The folder
    appears under its name when it is whole."""
    from reroll.training.tensors import buckets, num_bytes, write_buckets

    partial = directory.with_name(f"{directory.name}.partial")
    if ranks.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.meet()
    names = buckets(tensors, shard_bytes)
    files = shard_names(len(names))
    write_buckets(tensors, names, [partial / file for file in files], ranks)
    ranks.meet()
    if ranks.rank == 0:
        size = sum(map(num_bytes, tensors.values()))
        dtype = str(next(iter(tensors.values())).dtype)
        finish(partial, source, names, files, size, dtype, chat_template)
        _put_in_place(partial, directory)


def shard_names(count: int) -> list[str]:
    """As transformers names them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def finish(
    partial: Path,
    source: Path,
    names: Sequence[Sequence[str]],
    files: Sequence[str],
    num_bytes: int,
    dtype: str,
    chat_template: str | None,
) -> None:
    """Everything but the weights, which are written into the folder already.

    Args:
        chat_template: the one that the model was trained with, where it is not that of `source`.
    """
    if len(files) > 1:
        placed = {name: file for file, group in zip(files, names, strict=True) for name in group}
        index = {"metadata": {"total_size": num_bytes}, "weight_map": placed}
        (partial / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = dtype.removeprefix("torch.")
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name.startswith(COPIED):
            shutil.copyfile(path, partial / path.name)
    if chat_template is not None:
        (partial / "chat_template.jinja").write_text(chat_template, "utf-8")


def _put_in_place(partial: Path, directory: Path) -> None:
    """What an earlier start of the run exported gives way: a folder of that name is a whole one."""
    replaced = directory.with_name(f"{directory.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    partial.rename(directory)
    shutil.rmtree(replaced, ignore_errors=True)
