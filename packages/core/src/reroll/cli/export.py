"""`reroll export`: a checkpoint's model as a Hugging Face directory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class WeightType(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.", metavar="RUN")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write, new or empty.", metavar="DIR")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Optimizer steps of the checkpoint; by default the newest whole one.")
    ] = None,
    dtype: Annotated[
        WeightType, typer.Option(help="Type of the weights; they are trained in float32.")
    ] = WeightType.float32,
) -> None:
    """Write a checkpoint's model as a Hugging Face directory: weights in shards, configuration, tokenizer, template."""
    from reroll.api import CheckpointError, RerollError
    from reroll.checkpoints.state import model_differences, read_state
    from reroll.checkpoints.store import find_checkpoint
    from reroll.models.files import resolve_model
    from reroll.training.trainer import require_training_extra

    require_training_extra()
    to = to.resolve()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RerollError(f"--to {to}: exists and is not empty; give another folder")
    found = find_checkpoint(run, step)
    state = read_state(found.folder)
    model = state.settings.get("model", {})
    path, template = model.get("path"), model.get("chat_template")
    if not isinstance(path, str):
        raise CheckpointError(f"{found.folder} does not say which model it began with; use another checkpoint")
    files = resolve_model(path)
    if differences := model_differences(state.identity, files):
        listed = "\n  ".join(differences)
        raise CheckpointError(
            f"configuration and tokenizer come from {files.directory}, which is not as it was when the run began:\n  "
            f"{listed}\nUndo the change"
        )
    from reroll.training.checkpoint import export_checkpoint

    text = Path(template).read_text("utf-8") if template else None
    export_checkpoint(found.folder, files.directory, to, dtype.value, text)
    typer.echo(f"{to}: the model of step {found.manifest.step}, {dtype.value}")
