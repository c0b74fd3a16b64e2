"""`[launch]`: where `reroll run` has a run go on, and whether and how often it starts again in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from reroll.api import ConfigSection, Hook, Launcher, Problem, RunFile, Selection
from reroll.launch.attempts import LOCK
from reroll.launch.folder import LAUNCH, was_started
from reroll.reporting.config import OutputSection

BEFORE_A_RUN = {LOCK, "run.log", LAUNCH}
"""What is there before a start counts as one."""
OF_STARTS = ("max_retries", "auto_resume")
OF_LAUNCHERS = ("priority", "min_runtime", "mounts")


class LaunchSection(ConfigSection):
    section: ClassVar[str] = "launch"

    backend: Annotated[Selection, Hook("launchers")] = Selection(name="local")
    """Where `reroll run` has the run go on by itself: `local`, detached on this machine; `ray`, a job of a Ray cluster;
    `slurm`, a batch job. Options as in { name = "slurm", partition = "gpu" }. `reroll train` does not read it."""
    max_retries: int = Field(-1, ge=-1)
    """How many times a run may start in one output folder, the first time included and whether or not a start was
    productive; -1 is no bound. Further starts are refused. How many failures are forgiven is launch.retries."""
    auto_resume: bool = False
    """Where output.dir holds a run, go on from its newest whole checkpoint, or from the start where there is none.
    Without it such a folder is refused. Under `reroll run` a run whose process was killed is started again."""
    retries: int = Field(0, ge=0)
    """Under `reroll run`, with auto_resume: so often a run that failed by itself, and was not killed, is started
    again. By default its first failure is its end; launch.max_retries bounds all starts together."""
    priority: str | None = None
    """How the back end ranks the job: `local` and `slurm` know "low" and "normal". Unset, the back end decides."""
    min_runtime: float | None = Field(None, gt=0)
    """Minutes that the job is worth starting for: a back end that starts jobs early with less time than they ask for
    gives at least this. `slurm` knows it."""
    mounts: tuple[str, ...] = ()
    """Folders that the job's container gets, as "SOURCE:TARGET" or "SOURCE:TARGET:ro", both absolute. `slurm` knows
    it."""

    @field_validator("max_retries")
    @classmethod
    def _starts(cls, value: int) -> int:
        if value == 0:
            raise ValueError("would let the run never start; give at least 1, or -1 for no bound")
        return value

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            parts = item.split(":")
            mode = parts[2:] in ([], ["ro"], ["rw"])
            if len(parts) < 2 or not mode or not all(part.startswith("/") for part in parts[:2]) or "," in item:
                raise ValueError(f'{item!r} is no mount: give "SOURCE:TARGET" or "SOURCE:TARGET:ro", both absolute')
        return value

    def problems(self, run: RunFile) -> Iterator[Problem]:
        launcher: Any = run.component("launchers", self.backend.name)
        for name in OF_LAUNCHERS:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and name not in launcher.knows:
                given = list(value) if isinstance(value, tuple) else value
                other = launcher.elsewhere.get(name, 'leave it out, or choose another launch.backend, such as "slurm"')
                yield Problem(
                    f"launch.{name}", f"is {given!r}, which launch.backend = {self.backend.name!r} does not know", other
                )
        if self.priority is not None and "priority" in launcher.knows and self.priority not in launcher.priorities:
            words = ", ".join(map(repr, launcher.priorities))
            yield Problem(
                "launch.priority",
                f"is {self.priority!r}, but {self.backend.name!r} knows {words} alone",
                launcher.other_priorities or "give one of them",
            )
        if self.retries and not self.auto_resume:
            yield Problem(
                "launch.retries",
                f"is {self.retries}, but launch.auto_resume is false: a run never starts again in its folder",
                "set launch.auto_resume = true, or leave launch.retries out",
            )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        if thorough:  # a machine that trains need not have what submits jobs
            yield from self.launcher(run).problems(run)
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
                + ("; launch.auto_resume = true goes on with the run that it holds" if was_started(folder) else ""),
            )
        elif not was_started(folder):
            yield Problem(
                "output.dir",
                f"{str(folder)!r} holds something else than a run, which launch.auto_resume could go on with",
                "give the folder of a run, or a new one",
            )

    def launcher(self, run: RunFile) -> Launcher:
        made: Launcher = run.make("launchers", self.backend)
        return made


def idle_in_a_new_folder(run: RunFile) -> Iterator[Problem]:
    """What does nothing where every start makes a folder of its own, as `reroll train` does without output.dir."""
    if run.get(OutputSection).dir is not None:
        return
    section = run.get(LaunchSection)
    for name in OF_STARTS:
        value = getattr(section, name)
        if value != type(section).model_fields[name].default:
            yield Problem(
                f"launch.{name}",
                f"is {value!r}, but output.dir is not given: every `reroll train` has a folder of its own, and it "
                "would do nothing",
                "set output.dir, or start the run with `reroll run`",
            )
