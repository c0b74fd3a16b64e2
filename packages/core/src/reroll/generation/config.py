"""`[generation]`: attempts with frozen weights, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from reroll.api import ConfigSection, Problem, RunFile
from reroll.config.run import RunSection
from reroll.generation.bands import Band
from reroll.tasks.config import DataSection


class GenerationSection(ConfigSection):
    section: ClassVar[str] = "generation"

    n_trials: int = Field(4, gt=0)
    """Attempts of each task. Pass rates are multiples of 1/n_trials. It may be raised later: what is finished stays."""
    n_concurrent: int = Field(64, gt=0)
    """Attempts that are generated at a time."""
    temperature: float | None = Field(None, ge=0)
    """By default `rollout.temperature`; 0 takes the most likely token. A pass rate measured at another temperature
    than the one that is trained at belongs to a policy that does not exist."""
    pass_reward: float | None = Field(None, allow_inf_nan=False)
    """An attempt passes where its reward is at least this; by default where every verifier of positive weight gives
    at least 1, which is what evaluations call right."""
    limit: int | None = Field(None, gt=0)
    """Only the first so many tasks, in the order of the task sets. Streaming sets need it."""
    instances: Path | None = None
    """Only the tasks that this file names: an index (`.parquet`), or text with a `prepared_sample_id` a line."""
    results_dir: Path | None = None
    """Where everything is kept and gone on from; by default `outputs/<run.name>-generation`. A shard has a folder of
    its own in it."""
    output_index: Path | None = None
    """The index of selected tasks (`.parquet`); by default `index.parquet` in the results folder."""
    band: str = "(0, 1)"
    """Pass rates that the index takes, as an interval: `(0, 1)` leaves 0 and 1 out, `[0.25, 0.75]` takes both ends."""
    layout: Literal["journal", "tree"] = "journal"
    """How transcripts are kept: all in one file, or each in a folder `tasks/<task>/<trial>`."""
    max_retries: int = Field(3, ge=0)
    """How often an attempt that the infrastructure failed is tried again, before it counts as an error; another start
    tries it again."""
    training_run: Path | None = None
    """The run file that will train on the index: what it draws, judges or asks differently is a warning."""

    @field_validator("temperature")
    @classmethod
    def _temperature(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 1e-3:
            raise ValueError("give 0 for the most likely token, or at least 0.001")
        return value

    @field_validator("band")
    @classmethod
    def _band(cls, value: str) -> str:
        Band.parse(value)
        return value

    @field_validator("output_index")
    @classmethod
    def _output_index(cls, value: Path | None) -> Path | None:
        if value is not None and value.suffix != ".parquet":
            raise ValueError("an index is a .parquet file")
        return value

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.training_run is not None and run.path is not None and self.training_run.resolve() == run.path.resolve():
            yield Problem("generation.training_run", "is this run file itself", "leave it out")
        if self.output_index is not None:
            read = {key: selection.options.get("path") for key, selection in run.get(DataSection).task_sets()}
            for key, path in {**read, "generation.instances": self.instances}.items():
                if isinstance(path, str | Path) and Path(path).resolve() == self.output_index.resolve():
                    fault = f"{str(self.output_index)!r} is what {key} reads, and would be overwritten"
                    yield Problem("generation.output_index", fault, "give another file")

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        for name in ("instances", "training_run"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                yield Problem(f"generation.{name}", f"{str(path)!r} is no file", "give one that is there")
        if self.output_index is not None and self.output_index.is_dir():
            yield Problem("generation.output_index", f"{str(self.output_index)!r} is a folder", "give a file in it")

    def results(self, run: RunFile) -> Path:
        """The results folder, of all shards together."""
        return self.results_dir or Path("outputs") / f"{run.get(RunSection).name}-generation"
