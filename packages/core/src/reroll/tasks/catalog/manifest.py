"""Manifests: what a prepared data set consists of, and whether it is still what it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from reroll.api import Config, TaskError
from reroll.config.problems import from_validation
from reroll.tasks.catalog.prompts import canonical

SCHEMA = 1
FILE = "manifest.json"
DIGEST = "digest"
"""The key with the digest of everything else in the file: one that was edited by hand says so."""
AGAIN = "prepare the data set again, into another folder"


class SplitFacts(Config):
    """One file of prepared rows.

    Attributes:
        given_prompts: rows whose source brought the whole prompt, so that the template has no part in it.
        left_out: reason → rows of the source that are not in it.
        duplicates: rows that were dropped because an earlier one asks the same: by whether the target was the same too.
    """

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    sha256: str
    bytes: int
    rows: int
    given_prompts: int
    left_out: dict[str, int]
    duplicates: dict[str, int]


class PromptFacts(Config):
    template: str
    sha256: str
    system: str | None


class ManifestFacts(Config):
    """What a manifest says, without its schema and digest.

    Attributes:
        versions: `reroll`, and the package that gives the data set.
        source: what was given; its files with their digests.
        options: those of the data set; preparation: what `reroll data prepare` was told beside them.
        overlaps: `A in B` → rows of A that were dropped because B asks the same.
    """

    name: str
    versions: dict[str, str]
    source: dict[str, Any]
    options: dict[str, Any]
    preparation: dict[str, Any]
    prompt: PromptFacts
    verifier: str
    splits: dict[str, SplitFacts]
    overlaps: dict[str, int]


class Manifest:
    """A manifest that was read.

    Attributes:
        path: the file; what it names lies beside it.
        sha256: of the file.
    """

    def __init__(self, path: Path, facts: ManifestFacts, sha256: str) -> None:
        self.path = path
        self.facts = facts
        self.sha256 = sha256

    def split(self, name: str) -> SplitFacts:
        if name not in self.facts.splits:
            raise TaskError(f"{self.path}: has no split {name!r}; it has {', '.join(self.facts.splits)}")
        return self.facts.splits[name]

    def file(self, name: str) -> Path:
        return self.path.parent / self.split(name).file


def manifest_text(facts: ManifestFacts) -> str:
    """The file's text, the same for the same facts."""
    table = {"schema": SCHEMA, **facts.model_dump(mode="json")}
    return json.dumps({**table, DIGEST: digest_of(table)}, indent=1, ensure_ascii=False) + "\n"


def digest_of(table: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(table)).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """The manifest, whole and as it was written; TaskError says what was expected, what was found, what to do."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise TaskError(
            f"{path.absolute()} does not exist (paths count from the working directory); `reroll data prepare` "
            "writes it last, so that a folder without one is no whole data set"
        ) from None
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}; give the {FILE} of a prepared data set") from None
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: is no JSON: {error}; give the {FILE} of a prepared data set") from None
    if not isinstance(table, dict) or "schema" not in table:
        raise TaskError(f"{path}: is no manifest: it has no schema number; give the {FILE} of a prepared data set")
    if table["schema"] != SCHEMA or isinstance(table["schema"], bool):
        raise TaskError(
            f"{path}: schema {SCHEMA} expected, found {table['schema']!r:.40}; {AGAIN}, or use the reroll that wrote it"
        )
    written = table.pop(DIGEST, None)
    if (found := digest_of(table)) != written:
        raise TaskError(
            f"{path}: was edited after it was written: digest {written!s:.64} expected, found {found}; undo that, "
            f"or {AGAIN}"
        )
    try:
        facts = ManifestFacts(**{key: value for key, value in table.items() if key != "schema"})
    except ValidationError as error:
        first = from_validation(error, "manifest", ManifestFacts)[0]
        raise TaskError(f"{path}: {first.key}: {first.message}; {AGAIN}") from None
    return Manifest(path, facts, hashlib.sha256(content).hexdigest())


def file_fault(path: Path, facts: SplitFacts, sha256: str | None = None) -> str | None:
    """What is wrong with a split's file; None where nothing is.

    Args:
        sha256: of the file, once it is known; without it only the size is looked at.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"{path}: {facts.bytes:,} bytes expected, the file cannot be read: {error.strerror}; {_undo()}"
    if size != facts.bytes:
        return f"{path}: {facts.bytes:,} bytes expected, found {size:,}; {_undo()}"
    if sha256 is not None and sha256 != facts.sha256:
        return f"{path}: sha256 {facts.sha256} expected, found {sha256}; {_undo()}"
    return None


def _undo() -> str:
    return f"the file is not what the manifest beside it answers for: undo the change, or {AGAIN}"
