"""`[output]` and `[trackers]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from reroll.api import ConfigSection, Hook, Problem, RunFile, Selection


class OutputSection(ConfigSection):
    section: ClassVar[str] = "output"

    dir: Path | None = None
    """The run's folder, new or empty, unless launch.auto_resume goes on with the run in it; by default a new one,
    `outputs/<run.name>-<date>-<time>`."""
    export_hf: bool = False
    """Write the trained model as a Hugging Face directory to `<output>/model` at the end."""

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        try:
            if self.dir is None or not self.dir.exists():
                return
        except (OSError, ValueError) as error:
            yield Problem("output.dir", f"cannot be used: {error}")
            return
        if not self.dir.is_dir():
            yield Problem("output.dir", f"{str(self.dir)!r} is a file")


class TrackersSection(ConfigSection):
    section: ClassVar[str] = "trackers"

    names: Annotated[list[Selection], Hook("trackers")] = [Selection(name="jsonl")]
    """Where metrics go; `jsonl` writes `<output>/metrics.jsonl`."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        names = [item.name for item in self.names]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("trackers.names", f"names {name!r} twice")
