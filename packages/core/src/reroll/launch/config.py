"""`[launch]`: whether and how often a run starts again in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile
from reroll.launch.attempts import FILE, LOCK
from reroll.reporting.config import OutputSection

RUN_FILE = "run.toml"
BEFORE_A_RUN = {LOCK, "run.log"}
"""What a start writes before it counts as one."""


class LaunchSection(ConfigSection):
    section: ClassVar[str] = "launch"

    max_retries: int = Field(-1, ge=-1)
    """How many times a run may start again in one output folder; -1 is no bound, with 0 it starts once only."""
    auto_resume: bool = False
    """Where output.dir holds a run, go on from its newest whole checkpoint, or from the start where there is none.
    Without it such a folder is refused."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if run.get(OutputSection).dir is not None:
            return
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                yield Problem(
                    f"launch.{name}",
                    f"is {value!r}, but output.dir is not given: every start has a folder of its own, and it would do "
                    "nothing",
                    "set output.dir",
                )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        folder = run.get(OutputSection).dir
        try:
            if folder is None or not folder.is_dir() or {path.name for path in folder.iterdir()} <= BEFORE_A_RUN:
                return
        except (OSError, ValueError):
            return  # told by [output]
        if not self.auto_resume:
            yield Problem(
                "output.dir",
                f"{str(folder)!r} is not empty, and a run never writes over another",
                "give another folder, or leave output.dir out for a new one each time"
                + ("; launch.auto_resume = true goes on with the run that it holds" if holds_run(folder) else ""),
            )
        elif not holds_run(folder):
            yield Problem(
                "output.dir",
                f"{str(folder)!r} holds something else than a run, which launch.auto_resume could go on with",
                "give the folder of a run, or a new one",
            )


def holds_run(output: Path) -> bool:
    """Whether a run was started in the folder. The lock alone says nothing: who holds it is only about to."""
    return any((output / name).exists() for name in (FILE, "context.json"))
