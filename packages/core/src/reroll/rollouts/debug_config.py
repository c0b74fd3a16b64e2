"""`[debug]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from reroll.api import ConfigSection, Problem, RunFile


class DebugSection(ConfigSection):
    section: ClassVar[str] = "debug"

    load_rollouts: Path | None = None
    """A run's folder: train on its saved rollouts, collection by collection, instead of generating. No engine is
    started, and nothing is scored, recorded or evaluated."""

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
