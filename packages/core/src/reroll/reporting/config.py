"""`[output]` and `[trackers]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from reroll.api import ConfigSection, Hook, Problem, RunFile, Selection

RUN_FILE = "run.toml"
"""In the run's folder: what the run file resolved to."""


class OutputSection(ConfigSection):
    section: ClassVar[str] = "output"

    dir: Path | None = None
    """The run's folder, new or empty, unless launch.auto_resume goes on with the run in it; by default a new one,
    `outputs/<run.name>-<date>-<time>`."""
    export_hf: bool = False
    """Write the trained model as a Hugging Face directory to `<output>/model` at the end."""
    rollout_sample_rate: Annotated[float, Field(ge=0), AfterValidator(lambda value: min(value, 1.0))] = 0.0
    """Share of each collection's groups whose conversations are given to trackers: whole groups, chosen by a hash of
    `run.seed`, collection and task, so that equal runs and resumed ones choose the same. More than 1 means 1. A window
    for people: `<output>/rollouts` has every conversation whatever is given here."""

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
    """Where metrics go. `jsonl` writes `<output>/metrics.jsonl`; `tensorboard`, `wandb` and `trackio` are in extras of
    the same names: `pip install 'reroll[wandb]'`."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        names = [item.name for item in self.names]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("trackers.names", f"names {name!r} twice")

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        for index, item in enumerate(self.names):
            try:
                lacks = run.make("trackers", item).lacks()
            except Exception as error:  # a tracker is anybody's code
                lacks = f"{item.name!r} cannot say what it lacks: {type(error).__name__}: {error}"
            if lacks:
                yield Problem(f"trackers.names[{index}]", lacks)
