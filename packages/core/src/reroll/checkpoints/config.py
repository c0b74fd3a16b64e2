"""`[checkpoint]`: when checkpoints are made, which are kept, and which one a run starts from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from reroll.api import CheckpointError, ConfigSection, Problem, RunFile

INTERVAL = "set checkpoint.save_interval, in collections; checkpoints go to <output>/checkpoints"


class CheckpointSection(ConfigSection):
    section: ClassVar[str] = "checkpoint"
    refused: ClassVar[Mapping[str, str]] = {
        "save": "checkpoints always go to <output>/checkpoints; set output.dir, and checkpoint.save_interval",
        "save_steps": INTERVAL,
        "save_hf": "output.export_hf writes the trained model, and `reroll export` that of any checkpoint",
        "ckpt_step": "checkpoint.load names the folder of the step itself: …/checkpoints/step_N",
        "resume_from_checkpoint": "checkpoint.load starts from a checkpoint, launch.auto_resume goes on with a run",
        "save_total_limit": "checkpoint.keep_last is the number of checkpoints that stay",
        "no_save_optim": "a checkpoint holds everything that a run goes on from, its optimizer included",
        "no_load_optim": "a checkpoint is loaded whole; to start from its weights alone export them and set model.path",
        "finetune": "a checkpoint is loaded whole; to start from its weights alone export them and set model.path",
    }

    save_interval: int | None = Field(None, gt=0)
    """Collections between two checkpoints; by default none is made."""
    keep_last: int = Field(2, gt=0)
    """So many of the newest checkpoints stay; older ones are deleted when a new one is whole."""
    keep_every: int | None = Field(None, gt=0)
    """Checkpoints whose step is a multiple of it are never deleted. It counts optimizer steps, as the names of the
    folders do, and not collections; by default all but the newest are deleted."""
    load: Path | None = None
    """Start from this checkpoint: a folder `…/checkpoints/step_N`, or a run's folder, for its newest whole one."""
    async_save: bool = True
    """Copy the tensors and write them while training goes on; false waits until everything is on disk."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.save_interval is not None:
            return
        for name in ("keep_last", "keep_every", "async_save"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                yield Problem(
                    f"checkpoint.{name}",
                    f"is {value!r}, but save_interval is not given: no checkpoint is made, and it would do nothing",
                    "set checkpoint.save_interval",
                )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        from reroll.checkpoints.store import find_checkpoint  # `plan` loads this section, and must not wait for that

        if self.load is None:
            return
        try:
            find_checkpoint(self.load, thorough=thorough)
        except CheckpointError as error:
            yield Problem("checkpoint.load", str(error))
