"""What the package registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reroll.api import ConfigSection, PromptFilter, RecordWriter, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def reroll_config_sections() -> list[type[ConfigSection]]:
    from reroll_records.selection.config import SelectionSection
    from reroll_records.writing.config import RecordsSection

    return [RecordsSection, SelectionSection]


@hookimpl
def reroll_record_writers() -> list[type[RecordWriter]]:
    from reroll_records.writing.writer import StoreWriter

    return [StoreWriter]


@hookimpl
def reroll_prompt_filters() -> list[type[PromptFilter]]:
    from reroll_records.selection.filter import SelectionFilter

    return [SelectionFilter]


@hookimpl
def reroll_commands() -> list[tuple[str, typer.Typer]]:
    from reroll_records.commands import app

    return [("records", app)]
