"""`[selection]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile


class SelectionSection(ConfigSection):
    """A frozen table of prompts that are skipped before generation, as `reroll records select` builds it."""

    section: ClassVar[str] = "selection"

    table: Path | None = None
    """The table's file."""
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """Its SHA-256, as `reroll records select` printed it. Another table is refused."""

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if self.table is None and self.sha256 is not None:
            yield Problem("selection.table", "is not given, but selection.sha256 is", "give the table's file")
        if self.table is not None and self.sha256 is None:
            yield Problem(
                "selection.sha256",
                "is not given: the table is pinned by its digest",
                "give the digest that `reroll records select` printed",
            )
        for index, item in enumerate(run.value("data.prompt_filters")):
            if item.name == "selection":
                yield Problem(
                    f"data.prompt_filters[{index}]",
                    "lists 'selection', which [selection] switches on by itself",
                    "leave it out of the list, and give selection.table and selection.sha256",
                )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        from reroll_records.selection.tables import TableError, load_table

        if self.table is None or self.sha256 is None:
            return
        try:
            load_table(self.table, self.sha256)
        except TableError as error:
            yield Problem("selection.table", str(error), "")
