"""What `reroll plan` asks components before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class PlannedModel:
    """The starting checkpoint, as far as its files tell without being loaded.

    Attributes:
        directory: that engines will be started with; it may not be there yet.
        parameters: number of them; None where the files do not tell.
        dtype: in which the files hold them, as torch names it; None where it is not known, or not one.
    """

    directory: Path
    parameters: int | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class PlannedEngine:
    """One engine of the run. What it decides by itself when it starts is None.

    Attributes:
        argv: command line of the server that is launched for it; what is only known then, as ports and keys are, stands
            in angle brackets. Empty where no server is launched.
        told: what the launched program is told over its standard input, in the form of a command line.
        worker: keyword arguments of its worker, where it is one of reroll's own.
        environment: variables that are set for it.
        gpus: that it needs.
        memory: what is held → bytes on each of its devices.
        because: of a None in `memory`, the reason.
    """

    argv: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    worker: Mapping[str, object] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    memory: Mapping[str, int | None] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)
