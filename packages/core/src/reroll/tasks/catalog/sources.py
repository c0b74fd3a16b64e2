"""Sources of the catalog: files, folders of files, and data sets of the Hugging Face hub, read row by row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from reroll.api import RerollError

SUFFIXES = (".jsonl", ".json", ".parquet")
NOTES = {"dataset_infos.json"}
"""Files of a data set's folder that hold no rows."""
BATCH = 256
"""Rows of a Parquet file that are in memory at once."""
BLOCK = 1 << 20

SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "held_out", "held-out", "heldout"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
}
"""Names of splits, with the words that files and folders are named after them by."""
_SPLIT_WORD = re.compile(r"^(" + "|".join(word for words in SPLITS.values() for word in words) + r")(?![A-Za-z])", re.I)


class SourceError(RerollError, ValueError):
    """A source that cannot be prepared: what was given, and what to give."""


class Raw(NamedTuple):
    """A row as it is in a source.

    Attributes:
        number: within its file, counted from 1.
        value: what it holds, if `fault` is empty.
        fault: why it cannot be read.
    """

    number: int
    value: Any
    fault: str = ""


class Part:
    """A file of a source, or one split of a data set from the hub. Digest, size and count hold once its rows were read
    to the end.

    Attributes:
        name: within the source, without the folder that the source is in.
        rows_sha256: over the rows as JSON, where there is no file to digest.
    """

    def __init__(self, name: str, split: str) -> None:
        self.name = name
        self.split = split
        self.sha256: str | None = None
        self.bytes: int | None = None
        self.rows_sha256: str | None = None
        self.count = 0

    def rows(self) -> Iterator[Raw]:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        digests = {"sha256": self.sha256, "bytes": self.bytes, "rows_sha256": self.rows_sha256}
        given = {key: value for key, value in digests.items() if value is not None}
        return {"name": self.name, "split": self.split, "rows": self.count, **given}


class FilePart(Part):
    """JSON lines, Parquet, or one JSON text. Lines and Parquet are read in a stream; a JSON text is held in memory."""

    def __init__(self, path: Path, name: str, split: str) -> None:
        super().__init__(name, split)
        self.path = path

    def rows(self) -> Iterator[Raw]:
        reading = {".jsonl": self._lines, ".json": self._json, ".parquet": self._parquet}[self.path.suffix]
        for raw in reading():
            self.count += 1
            yield raw

    def _lines(self) -> Iterator[Raw]:
        digest, size, number = hashlib.sha256(), 0, 0
        with self.path.open("rb") as file:
            for line in file:
                digest.update(line)
                size += len(line)
                if line.strip():
                    number += 1
                    yield _parsed(number, line)
        self.sha256, self.bytes = digest.hexdigest(), size

    def _json(self) -> Iterator[Raw]:
        """A list of rows, or one row. What is neither may be JSON lines, which many files of this name hold."""
        text = self.path.read_bytes()
        try:
            found = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            if text.lstrip()[:1] == b"[":
                raise SourceError(f"{self.path} is no JSON: {error}; mend the file, or fetch it again") from None
            yield from self._lines()
            return
        self.sha256, self.bytes = hashlib.sha256(text).hexdigest(), len(text)
        for number, value in enumerate(found if isinstance(found, list) else [found], 1):
            yield Raw(number, value)

    def _parquet(self) -> Iterator[Raw]:
        try:
            from pyarrow import parquet
        except ImportError:
            raise SourceError(f"{self.path} needs pyarrow: pip install 'reroll[parquet]'") from None
        digest, size = hashlib.sha256(), 0
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
            self.sha256, self.bytes = digest.hexdigest(), size
            number = 0
            try:
                for batch in parquet.ParquetFile(file).iter_batches(batch_size=BATCH):
                    for value in batch.to_pylist():
                        number += 1
                        yield Raw(number, value)
            except Exception as error:  # pyarrow has many
                if isinstance(error, RerollError):
                    raise
                raise SourceError(f"{self.path} is no readable Parquet file: {error}; fetch it again") from None


class RowsPart(Part):
    """Rows that come from no file of ours."""

    def __init__(self, name: str, split: str, given: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(name, split)
        self._given = given

    def rows(self) -> Iterator[Raw]:
        digest = hashlib.sha256()
        for number, value in enumerate(self._given, 1):
            digest.update(json.dumps(value, sort_keys=True, default=repr).encode() + b"\n")
            self.count = number
            yield Raw(number, dict(value))
        self.rows_sha256 = digest.hexdigest()


class Source(NamedTuple):
    """What a data set is prepared from.

    Attributes:
        facts: what was given, for the manifest; no folder of this machine, and no time.
    """

    parts: list[Part]
    facts: dict[str, Any]


def file_source(given: Path) -> Source:
    """A file, or a folder whose files are named after splits, or lie in folders that are."""
    if given.is_file():
        if given.suffix not in SUFFIXES:
            raise SourceError(f"--from {given}: is neither {_listed(SUFFIXES)}; convert it to one of them")
        part = FilePart(given, given.name, split_in(given.name) or "train")
        return Source([part], {"kind": "file"})
    if not given.is_dir():
        raise SourceError(
            f"--from {given}: does not exist (paths count from the working directory); give a file, a folder, or "
            "hub:OWNER/NAME"
        )
    files = (path for path in given.rglob("*") if path.suffix in SUFFIXES and path.is_file() and path.name not in NOTES)
    within = (path.relative_to(given) for path in files)
    found = sorted(path.as_posix() for path in within if not any(part.startswith(".") for part in path.parts))
    if not found:
        raise SourceError(f"--from {given}: holds no {_listed(SUFFIXES)} file")
    parts: list[Part] = []
    for name in found:
        split = next((split for each in PurePosixPath(name).parts if (split := split_in(each))), None)
        if split is None:
            raise SourceError(
                f"--from {given}: {name} says no split in its name, nor does its folder; name it after one "
                f"({', '.join(SPLITS)}), or give one file"
            )
        parts.append(FilePart(given / name, name, split))
    return Source(parts, {"kind": "folder"})


def split_named(name: str) -> str:
    """The split that is called so, under the name that it has here."""
    return next((split for split, words in SPLITS.items() if name in words), name)


def split_in(name: str) -> str | None:
    """The split that a file or a folder is named after; `train-00000-of-00002.parquet` is of `train`."""
    found = _SPLIT_WORD.match(name)
    if found is None:
        return None
    return next(split for split, words in SPLITS.items() if found[1].lower() in words)


def _parsed(number: int, line: bytes) -> Raw:
    try:
        return Raw(number, json.loads(line, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        return Raw(number, None, f"is no JSON: {error}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} nor {last}"
