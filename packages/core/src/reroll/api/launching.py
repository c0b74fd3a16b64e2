"""Launchers decide where a whole run goes on by itself: detached on this machine, as a job of a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from reroll.api.component import Component
from reroll.api.errors import Problem
from reroll.api.sections import RunFile


@dataclass(frozen=True)
class LaunchJob:
    """What is to be started.

    Attributes:
        name: of the run.
        arguments: follow the Python that the launcher chooses: they start the run's supervisor, which starts the run,
            starts it again where it may, ends it when it gets SIGTERM, and writes into `log` by itself.
        output: the run's folder, absolute; whatever starts the job must see it under this path.
        log: all that the run says.
        working_directory: from which relative paths count.
        auto_resume: whether a job that was lost may be started again as it is.
        priority: one of the launcher's `priorities`; None where the run file says nothing.
        min_runtime: minutes; None where the run file says nothing.
        mounts: `SOURCE:TARGET[:ro]`.
    """

    name: str
    arguments: tuple[str, ...]
    output: Path
    log: Path
    working_directory: Path
    auto_resume: bool
    priority: str | None = None
    min_runtime: float | None = None
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobState:
    """How a job stands, as its back end sees it.

    Attributes:
        state: `pending` (it waits for room), `running`, `ended` (well or not), or `unknown` (the back end has
            forgotten it, or cannot be asked; `detail` says which).
        where: machines, as far as they are known.
        detail: what the back end says, in its words.
    """

    state: Literal["pending", "running", "ended", "unknown"]
    where: str = ""
    detail: str = ""


class Launcher(Component):
    """Starts a run that goes on by itself, and finds it again. Every method may be called from another program than
    the one that submitted, on any machine that reaches the back end; RerollError says what did not work.

    Attributes:
        knows: which of `launch.priority`, `launch.min_runtime` and `launch.mounts` it can do; a run file with one of
            the others is refused.
        priorities: the words that it takes for `launch.priority`.
        other_priorities: what to do for one that it does not take.
        elsewhere: key that it does not know → what to use in its place.
    """

    knows: ClassVar[frozenset[str]] = frozenset()
    priorities: ClassVar[tuple[str, ...]] = ()
    other_priorities: ClassVar[str] = ""
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def problems(self, run: RunFile) -> Iterator[Problem]:
        """What keeps it from starting this run: a command that is not there, options that lack one another."""
        yield from ()

    @abstractmethod
    def preview(self, job: LaunchJob) -> str:
        """What `submit` would hand to the back end, for a person to read; starts nothing, and needs no back end."""

    @abstractmethod
    def submit(self, job: LaunchJob) -> Mapping[str, Any]:
        """Starts the job; gives what the other methods need to find it, as JSON knows it, without secrets."""

    @abstractmethod
    def state(self, handle: Mapping[str, Any]) -> JobState: ...

    @abstractmethod
    def kill(self, handle: Mapping[str, Any]) -> None:
        """Ends the job and every process of it at once, or takes it back where it waits; one that has ended stays as
        it is. A clean end needs no launcher: the supervisor looks for a file in the run's folder."""
