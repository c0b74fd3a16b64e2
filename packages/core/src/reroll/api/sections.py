"""Sections of the run file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from reroll.api.component import Component, Config
from reroll.api.errors import Problem
from reroll.api.selection import Selection

SectionT = TypeVar("SectionT", bound="ConfigSection")


class RunFile(Protocol):
    """The loaded run file, as a section sees it when it checks itself."""

    path: Path | None

    def get(self, section: type[SectionT]) -> SectionT:
        """The loaded section of that class."""

    def value(self, key: str) -> Any:
        """The value of a dotted key, such as `async.fully_async`; for sections of another package. KeyError where
        there is no such key."""

    def component(self, hook: str, name: str) -> type[Component]:
        """The class that a plugin gives under `name` for `hook` (without the prefix `reroll_`)."""

    def names(self, hook: str) -> list[str]:
        """What the installed plugins give for `hook`."""

    def distribution(self, hook: str, name: str) -> str:
        """The distribution that gives it, for errors."""

    def make(self, hook: str, selection: Selection) -> Any:
        """The selected component, configured."""


class ConfigSection(Config):
    """One table of the run file. The docstring under each field is its reference text."""

    section: ClassVar[str]
    """Name of the table."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        """Faults that only show beside other sections; asked once every section is loaded."""
        yield from ()

    def pinned(self) -> Mapping[str, Any]:
        """Values to write into a resolved run file in place of the given ones, so that it means the same from any
        folder; paths are made absolute without being named here."""
        return {}

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        """Faults that need files to be read; asked by `reroll validate`, and with `thorough` off before a run
        starts: then what costs time for each task is left to a sample."""
        yield from ()
