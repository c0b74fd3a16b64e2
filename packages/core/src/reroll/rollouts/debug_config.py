"""`[debug]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile
from reroll.rollouts.config import RolloutSection


class DebugSection(ConfigSection):
    section: ClassVar[str] = "debug"

    load_rollouts: Path | None = None
    """A run's folder: train on its saved rollouts, collection by collection, instead of generating. No engine is
    started, and nothing is scored, recorded or evaluated."""
    exit_after_rollout: int | None = Field(None, gt=0)
    """End this start of the run after so many collections were generated, scored and saved: nothing is evaluated or
    trained on, every collection is the starting policy's, and no checkpoint is made. Their groups count as consumed and
    the run as completed; another one can train on its folder with `load_rollouts`."""
    diagnostic_interval: int | None = Field(None, gt=0)
    """Every so many optimizer steps, log `diagnostics/*` (norms of gradients, weights and update by kind of parameter,
    and how far log-probabilities of trainer and engine are apart), and at the next publication compare the digests of
    what trainer and engines hold, as `serving.check_weight_update_equal` does at each one. Results are the same to the
    bit. Unset, never."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.exit_after_rollout is None:
            return
        if self.load_rollouts is not None:
            yield Problem(
                "debug.exit_after_rollout", "nothing is generated with debug.load_rollouts", "leave one of them out"
            )
        if self.exit_after_rollout > (collections := run.get(RolloutSection).num_rollout):
            yield Problem(
                "debug.exit_after_rollout", f"{self.exit_after_rollout} is more than rollout.num_rollout, {collections}"
            )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        from reroll.traces.saved import step_directory  # `plan` loads this section, and must not wait for that

        if self.load_rollouts is None:
            return
        if not step_directory(self.load_rollouts, 0).is_dir():
            yield Problem(
                "debug.load_rollouts",
                f"{str(self.load_rollouts)!r} has no {step_directory(Path(), 0)}",
                "give the folder of a run that saved rollouts",
            )
