"""The task set `manifest`: one split of a prepared data set, as it was when it was prepared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from reroll.api import Config, Problem, RunFile, Selection, Task, TaskError, TaskSet, task_from_record
from reroll.tasks.catalog.manifest import Manifest, SplitFacts, file_fault, read_manifest
from reroll.tasks.file import FileConfig, FileTaskSet, JsonLines


class ManifestConfig(Config):
    path: Path
    """The `manifest.json` of a data set that `reroll data prepare` made."""
    split: str = "train"
    """Which of its splits."""


class AnsweredFor(FileTaskSet):
    """A prompt file that a manifest answers for: it is digested while it is read, and refused where it differs."""

    def __init__(self, path: Path, facts: SplitFacts) -> None:
        super().__init__(FileConfig(path=path, metadata_key="metadata"))
        self._facts = facts

    @cached_property
    def _rows(self) -> JsonLines:
        path = self.config.path
        if fault := file_fault(path, self._facts):
            raise TaskError(fault)
        digest = hashlib.sha256()
        rows = JsonLines(path, digest.update)
        if fault := file_fault(path, self._facts, digest.hexdigest()):
            raise TaskError(fault)
        return rows


class ManifestTaskSet(TaskSet):
    """Tasks of a prepared data set. Its file is read from end to end and its digest compared each time that the set is
    opened, some times at every start: about a second for a gigabyte each. No digest is remembered."""

    name = "manifest"
    Config = ManifestConfig

    @classmethod
    def problems(cls, config: Any, run: RunFile, key: str) -> Iterator[Problem]:
        """What the manifest itself says, if it is there: a plan may be made where the data is not."""
        if not config.path.is_file():
            return
        try:
            manifest = read_manifest(config.path)
            manifest.split(config.split)
        except TaskError as error:
            yield Problem(key, str(error))
            return
        verifier = manifest.facts.verifier
        if verifier not in (listed := [item.name for item in run.value("data.verifiers")]):
            written = ", ".join(f'"{name}"' for name in [*listed, verifier])
            yield Problem(
                key,
                f"the answers of {manifest.facts.name!r} are judged by the verifier {verifier!r}, which data.verifiers "
                "does not list",
                f"verifiers = [{written}]",
            )

    def open(self, run: RunFile, output: Path | None, seed: int) -> None:
        len(self._tasks)

    @property
    def data_file(self) -> Path:
        """Where its rows are, for errors."""
        return self._manifest.file(self.config.split)

    @cached_property
    def _manifest(self) -> Manifest:
        return read_manifest(self.config.path)

    @cached_property
    def _tasks(self) -> AnsweredFor:
        return AnsweredFor(self.data_file, self._manifest.split(self.config.split))

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """Known by the data set and split, its row there, and the identity that its preparation gave it."""
        dataset = f"{self._manifest.facts.name}/{self.config.split}"
        return replace(self._tasks.task(index), source_dataset=dataset, source_row=index)

    def recover(self, saved: Mapping[str, Any]) -> Task:
        return task_from_record(saved)

    def fingerprint(self) -> str:
        """Follows from the manifest, which answers for the file: a run goes on under the same manifest only."""
        return hashlib.sha256(f"{self._manifest.sha256}:{self.config.split}".encode()).hexdigest()


def adopted(selection: Selection | None) -> dict[str, Any]:
    """What the manifest of a selected set says of it, for a plan: no data is read, and nothing is said where there is
    no manifest yet, or where the set is another one."""
    if selection is None or selection.name != ManifestTaskSet.name:
        return {}
    config = ManifestConfig(**selection.options)
    if not config.path.is_file():
        return {}
    manifest = read_manifest(config.path)
    rows = manifest.split(config.split).rows
    said = {"data_set": manifest.facts.name, "split": config.split, "rows": rows, "sha256": manifest.sha256}
    return {"manifest": said}
