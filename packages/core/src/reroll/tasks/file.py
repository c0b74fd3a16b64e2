"""Prompt files: JSONL and Parquet."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import model_validator

from reroll.api import Config, RunFile, Task, TaskError, TaskSet, Tool, task_from_record
from reroll.models.files import sha256_file

ROLES = {"system", "user", "assistant", "tool", "developer"}


class FileConfig(Config):
    path: Path
    """A `.jsonl` or `.parquet` file, one task a row."""
    input_key: str | None = None
    """Field with the prompt: messages, or plain text. Default: `messages` if the row has it, else `prompt`."""
    label_key: str | None = None
    """Field with the target of the one verifier that `verifier` names. Default: rows have `targets`, a table of
    verifier name and target."""
    verifier: str | None = None
    """The verifier that judges against `label_key`."""
    metadata_key: str | None = None
    """Field kept as the task's metadata. Default: every field that is not read otherwise."""

    @model_validator(mode="after")
    def _label(self) -> FileConfig:
        if (self.label_key is None) != (self.verifier is None):
            raise ValueError("label_key and verifier belong together: give both, or neither")
        if self.path.suffix not in (".jsonl", ".parquet"):
            raise ValueError(f"path = {str(self.path)!r} is neither .jsonl nor .parquet")
        return self


class FileTaskSet(TaskSet):
    """Tasks from a file. Rows are checked when the file is opened and parsed again when they are needed,
    so that a large file costs eight bytes a row."""

    name = "file"
    Config = FileConfig

    _installed: Mapping[str, Tool] = {}

    def open(self, run: RunFile, output: Path | None, seed: int) -> None:
        from reroll.tasks.config import DataSection
        from reroll.tasks.installed import InstalledTools

        self._installed = InstalledTools(run, run.get(DataSection).tools)

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._to_task(self._rows[index], index)

    def recover(self, saved: Mapping[str, Any]) -> Task:
        """A task as it was saved, or the row of another product that it was made of."""
        row = dict(saved)
        if "targets" not in row or self.config.label_key in row:
            return self._to_task({name: value for name, value in row.items() if value is not None}, 0)
        return task_from_record(saved)

    def fingerprint(self) -> str:
        return sha256_file(self.config.path)

    @cached_property
    def _rows(self) -> JsonLines | ParquetRows:
        path = self.config.path
        if not path.is_file():
            raise TaskError(f"{path.absolute()} does not exist (paths count from the working directory)")
        rows = JsonLines(path) if path.suffix == ".jsonl" else ParquetRows(path)
        if not len(rows):
            raise TaskError(f"{path} holds no rows")
        return rows

    def _to_task(self, row: Any, index: int) -> Task:
        where = f"{self.config.path}:{index + 1}"
        if not isinstance(row, dict):
            raise TaskError(f"{where}: the row is {type(row).__name__}, not a table of fields")
        key = self.config.input_key or ("messages" if row.get("messages") is not None else "prompt")
        if row.get(key) is None:
            wanted = repr(key) if self.config.input_key else "'messages' or 'prompt'"
            raise TaskError(f"{where}: has no {wanted}; set input_key to one of its fields: {', '.join(row)}")
        if fault := prompt_fault(row[key], key):
            raise TaskError(f"{where}: {fault}")
        targets = self._targets(row, where)
        read = {key, "targets", "tools", "prepared_sample_id", "source_dataset", "source_row", self.config.label_key}
        if self.config.metadata_key:
            metadata = row.get(self.config.metadata_key) or {}
            if not isinstance(metadata, dict):
                raise TaskError(f"{where}: {self.config.metadata_key} = {metadata!r} is not a table")
        else:
            metadata = {name: value for name, value in row.items() if name not in read}
        return Task(
            prompt=row[key],
            targets=targets,
            source_dataset=_name(row, "source_dataset", self.config.path.stem, where),
            source_row=_row_number(row.get("source_row"), index, where),
            prepared_sample_id=_name(row, "prepared_sample_id", str(index), where),
            tools=self._tools(row.get("tools") or [], where),
            metadata=metadata,
        )

    def _tools(self, given: Any, where: str) -> list[dict[str, Any]]:
        """Schemas, and names of installed tools, whose schemas stand for them."""
        if not isinstance(given, list) or not all(isinstance(item, str | dict) for item in given):
            raise TaskError(f"{where}: tools = {given!r:.60} is no list of schemas or of names of tools")
        found: list[dict[str, Any]] = []
        for item in given:
            if isinstance(item, dict):
                found.append(item)
            elif item in self._installed:
                found.append(self._installed[item].schema())
            else:
                there = ", ".join(sorted(self._installed)) or "none"
                raise TaskError(f"{where}: tools names {item!r}, which no installed package gives; there are: {there}")
        return found

    def _targets(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        if self.config.label_key:
            if row.get(self.config.label_key) is None:
                fields = ", ".join(row)
                raise TaskError(f"{where}: label_key {self.config.label_key!r} is missing; fields: {fields}")
            return {self.config.verifier: row[self.config.label_key]}
        targets = row.get("targets")
        if not isinstance(targets, dict) or not targets:
            raise TaskError(
                f"{where}: targets = {targets!r} is not a table of verifier name and target; "
                "write one, or set label_key and verifier"
            )
        # Parquet gives every row every verifier's column, null where it has no target
        return {name: value for name, value in targets.items() if value is not None}


class JsonLines:
    """Random access to the lines of a file; blank lines are no rows.

    Args:
        see: is shown every byte, in order, while the lines are found.
    """

    def __init__(self, path: Path, see: Callable[[bytes], None] = lambda line: None) -> None:
        self.path = path
        self._offsets = array("Q")
        offset = 0
        with path.open("rb") as file:
            for line in file:
                see(line)
                if line.strip():
                    self._offsets.append(offset)
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(self._offsets[index])
            line = file.readline()
        try:
            return json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{self.path}: row {index + 1} is no JSON: {error}") from None


class ParquetRows:
    """Random access to the rows of a Parquet file."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError:
            raise TaskError(f"{path} needs pyarrow: pip install 'reroll[parquet]'") from None
        try:
            self._table = parquet.read_table(path)
        except Exception as error:
            raise TaskError(f"{path} is no readable Parquet file: {error}") from None

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Any:
        return _without_nulls(self._table.slice(index, 1).to_pylist()[0])


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Drops the nulls that Parquet adds to messages whose fields differ."""
    messages = row.get("messages")
    if isinstance(messages, list):
        row["messages"] = [
            {key: value for key, value in message.items() if value is not None}
            if isinstance(message, dict)
            else message
            for message in messages
        ]
    return row


def _name(row: Mapping[str, Any], key: str, default: str, where: str) -> str:
    """Seeds follow from it and indexes hold it, which takes text that can be encoded."""
    name = str(row.get(key) or default)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise TaskError(f"{where}: {key} = {name!a:.60} holds half of a surrogate pair, which is no text") from None
    return name


def _row_number(given: Any, index: int, where: str) -> int:
    if given is None:
        return index
    if isinstance(given, bool) or not isinstance(given, int) or not -(1 << 63) <= given < 1 << 63:
        raise TaskError(f"{where}: source_row = {given!r:.60} is no whole number of 64 bits")
    return given


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def prompt_fault(prompt: Any, key: str) -> str | None:
    """Why what a field holds can be no prompt, neither a text nor chat messages; None where it can."""
    if isinstance(prompt, str):
        return None if prompt else f"{key} is empty"
    if not isinstance(prompt, list) or not prompt:
        return f"{key} = {str(prompt)[:60]!r} is neither text nor a list of messages"
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or str(message.get("role")) not in ROLES:
            return f"{key}[{number}] needs a role among {', '.join(sorted(ROLES))}"
        if not isinstance(message.get("content"), (str, list)) and not message.get("tool_calls"):
            return f"{key}[{number}].content is missing"
    return None
