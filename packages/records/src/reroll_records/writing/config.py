"""`[records]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile


class RecordsSection(ConfigSection):
    """Recording the outcome of every scored group. It changes neither admission nor filtering nor training."""

    section: ClassVar[str] = "records"

    enabled: bool = False
    """True: every scored training group is recorded. Needs `async.fully_async = true`."""
    root: Path | None = None
    """The store, one absolute folder for all runs. Needed where recording is on."""
    responses: Literal["off", "all", "sample"] = "off"
    """`off` keeps outcomes alone. `all` keeps the text of every response and its prompt, `sample` that of whole groups,
    which are chosen by their prompts and seeds, so that equal runs keep the same ones."""
    response_sample_rate: float | None = Field(None, gt=0, le=1)
    """Share of the groups whose text is kept; needed with, and only with, `responses = "sample"`."""

    @property
    def text_rate(self) -> float:
        """Share of the groups whose text is kept."""
        return {"off": 0.0, "all": 1.0, "sample": self.response_sample_rate or 0.0}[self.responses]

    def problems(self, run: RunFile) -> Iterator[Problem]:
        yield from self._text_problems()
        if self.root is not None and not self.root.is_absolute():
            yield Problem(
                "records.root",
                f"{str(self.root)!r} is relative, and would be another store in every folder",
                "give an absolute path",
            )
        if not self.enabled:
            if "enabled" not in self.model_fields_set and self.model_fields_set:
                yield Problem(
                    f"records.{min(self.model_fields_set)}",
                    "is given, but records.enabled is not: nothing would be recorded",
                    "set records.enabled = true, or to false to say that it is off",
                )
            return
        if self.root is None:
            yield Problem("records.root", "is not given, but recording is on", "give the store, an absolute path")
        if not run.value("async.fully_async"):
            yield Problem(
                "records.enabled",
                "is true, but the run is synchronous: recording lives where groups wait for the trainer, and there is "
                "no such place",
                "set async.fully_async = true, or records.enabled = false",
            )
        if run.value("debug.load_rollouts") is not None:
            yield Problem(
                "records.enabled",
                "is true, but debug.load_rollouts trains on what another run generated: nothing is scored",
                "set records.enabled = false",
            )

    def _text_problems(self) -> Iterator[Problem]:
        if (self.response_sample_rate is not None) != (self.responses == "sample"):
            given = self.response_sample_rate is not None
            yield Problem(
                "records.response_sample_rate",
                f"is {self.response_sample_rate}, but records.responses is {self.responses!r}"
                if given
                else 'is not given, but records.responses is "sample"',
                'set records.responses = "sample", or leave it out' if given else "give a share in (0, 1]",
            )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        if not self.enabled or self.root is None or not thorough:
            return  # a run that cannot record says so and goes on: what it trains is not recording's to stop
        existing = self.root
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir() or not _writable(existing):
            yield Problem("records.root", f"{str(existing)!r} is no folder that can be written to", "give another one")


def _writable(folder: Path) -> bool:
    from os import W_OK, X_OK, access

    return access(folder, W_OK | X_OK)
