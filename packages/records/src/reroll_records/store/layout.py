"""What lies in a store: runs, their attempts, and the files of each. The standard library alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from reroll_records.store.rows import SCHEMA

MANIFEST, RECORDS, COMPACTED, CLOSED = "manifest-{}.json", "records-{}.jsonl", "records-{}.parquet", "closed-{}.json"


class StoreError(ValueError):
    """There is no store where one was named, or it cannot be read."""


@dataclass(frozen=True)
class Attempt:
    """One start of a run, with what it recorded.

    Attributes:
        folder: of the run; its file names carry the attempt's id.
        manifest: as it was written.
    """

    folder: Path
    id: str
    manifest: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.manifest["run"]["id"])

    @property
    def run_name(self) -> str:
        return str(self.manifest["run"]["name"])

    @property
    def source(self) -> str:
        """`train`, or `generate`: by weights that stayed the starting checkpoint's."""
        return str(self.manifest["source"])

    @property
    def lineage(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the starting checkpoint's file inventory."""
        return str(self.manifest["lineage"]["id"])

    @property
    def protocol(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.manifest["protocol"]
        return found

    @property
    def protocol_digest(self) -> str:
        return str(self.manifest["protocol_digest"])

    @property
    def deterministic(self) -> bool:
        """Whether a response follows from weights, prompt and sampling seed; taken for so where it is not known, so
        that no response counts as evidence twice."""
        return self.protocol.get("deterministic_inference") is not False

    @property
    def rollout_seed(self) -> int:
        return int(self.manifest["rollout_seed"])

    @property
    def started(self) -> float:
        """In seconds since the epoch."""
        return float(self.manifest["started"])

    @property
    def manifest_path(self) -> Path:
        return self.folder / MANIFEST.format(self.id)

    @property
    def records_path(self) -> Path:
        """JSON lines, as they were written; there may be none of them yet, or any more."""
        return self.folder / RECORDS.format(self.id)

    @property
    def compacted_path(self) -> Path:
        """The same rows in Parquet, once they were compacted."""
        return self.folder / COMPACTED.format(self.id)

    @property
    def closed_path(self) -> Path:
        """What the writer says when it ends in order."""
        return self.folder / CLOSED.format(self.id)

    @cached_property
    def closed(self) -> Mapping[str, Any] | None:
        try:
            found = json.loads(self.closed_path.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Store:
    """The attempts of a store, of a lineage or of a run.

    Attributes:
        attempts: in the order of their folders and ids; an attempt's place here is its number.
        orphans: record files without a manifest; they are counted nowhere.
        warnings: what could not be used, each a sentence.
    """

    root: Path
    attempts: list[Attempt]
    orphans: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def name(self, path: Path) -> str:
        """A file's name within the store, with forward slashes."""
        return path.relative_to(self.root).as_posix()


def scan(path: Path) -> Store:
    """Everything in a store.

    Args:
        path: the store's root, the folder of a lineage, or that of a run.

    Raises:
        StoreError: nothing is there, or nothing that a writer left.
    """
    if not path.is_dir():
        raise StoreError(f"{path} is no folder: give the root of a store, or the folder of one lineage")
    attempts: list[Attempt] = []
    orphans: list[Path] = []
    warnings: list[str] = []
    seen: dict[str, Path] = {}
    for folder in run_folders(path):
        manifests = dict(with_ids(folder, MANIFEST))
        for attempt_id, file in manifests.items():
            try:
                attempt = Attempt(folder, attempt_id, _manifest(file, attempt_id))
            except StoreError as error:
                warnings.append(f"{file.relative_to(path).as_posix()}: {error}; its records are counted nowhere")
                continue
            if attempt_id in seen:
                warnings.append(
                    f"{file.relative_to(path).as_posix()}: attempt {attempt_id} is in "
                    f"{seen[attempt_id].relative_to(path).as_posix()} as well, and is counted there alone"
                )
                continue
            seen[attempt_id] = file
            attempts.append(attempt)
        for pattern in (RECORDS, COMPACTED):
            for attempt_id, file in with_ids(folder, pattern):
                if attempt_id not in manifests:
                    orphans.append(file)
                    warnings.append(f"{file.relative_to(path).as_posix()} has no manifest and is counted nowhere")
    if not attempts and not orphans and not warnings:
        raise StoreError(f"{path} holds no inference records: no {MANIFEST.format('*')} is in it")
    return Store(path, attempts, orphans, warnings)


def sha256_prefix(path: Path, size: int) -> str:
    """SHA-256 of a file's first `size` bytes: what a growing file held when its size was read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def run_folders(path: Path) -> Iterator[Path]:
    """The folder itself, those in it, and those in them: a run, the runs of a lineage, the lineages of a store."""
    folders = [path]
    for _ in range(3):
        yield from folders
        folders = sorted(child for folder in folders for child in folder.iterdir() if child.is_dir())


def with_ids(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    prefix, suffix = pattern.split("{}")
    for file in sorted(folder.glob(pattern.format("*"))):
        if file.is_file():
            yield file.name[len(prefix) : len(file.name) - len(suffix)], file


_NEEDED: Mapping[str, Any] = {
    "source": str,
    "run": {"name": str, "id": str, "attempt": str, "fresh": bool},
    "lineage": {"id": str, "files": dict},
    "protocol": {"deterministic_inference": (bool, type(None))},
    "protocol_digest": str,
    "rollout_seed": int,
    "started": (int, float),
}


def _manifest(file: Path, attempt_id: str) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"the manifest cannot be read ({error})") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        number = found.get("schema") if isinstance(found, dict) else None
        raise StoreError(f"the manifest has schema {number!r}, and this reader takes {SCHEMA}")
    if isinstance(found.get("started"), int | float) and not abs(found["started"]) < 2**63:
        raise StoreError(f"the manifest has started = {found['started']!r:.40}, which is no time")
    if missing := _missing(found, _NEEDED, ""):
        raise StoreError(f"the manifest has no usable {missing}")
    if (named := found["run"]["attempt"]) != attempt_id:  # a renamed copy would count its attempt twice
        raise StoreError(f"the manifest is that of attempt {named}, and the file is named for {attempt_id}")
    return found


def _missing(found: Mapping[str, Any], needed: Mapping[str, Any], prefix: str) -> str | None:
    """The first field that is not there, or not of its type."""
    for name, kind in needed.items():
        value = found.get(name)
        if isinstance(kind, Mapping):
            wrong = _missing(value, kind, f"{prefix}{name}.") if isinstance(value, dict) else f"{prefix}{name}"
            if wrong:
                return wrong
        elif not isinstance(value, kind):
            return f"{prefix}{name}"
    return None
