"""Which file an attempt's rows are read from, and what the store held when reading began. The standard library alone.

An attempt's JSON lines are read while they are whole; else its compacted rows, whose file says what the lines were: so
that a snapshot means the same before and after they went.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reroll_records.store.layout import (
    COMPACTED,
    MANIFEST,
    RECORDS,
    Attempt,
    Store,
    run_folders,
    sha256_prefix,
    with_ids,
)

SOURCE_KEY = "reroll_source"
"""In a compacted file's footer: JSON of what it was made from, `name`, `size`, `sha256`, `incomplete` (whether its last
line was), `unreadable` (lines that were no rows) and `rows`."""
_BLOCK = 1 << 16
RETRIES = 5
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Source:
    """Where an attempt's rows are.

    Attributes:
        attempt: its number in `Store.attempts`.
        path: JSON lines, or Parquet if `compacted`.
        name: of the JSON lines within the store, whether they are still there or not.
        size: bytes of the JSON lines when reading began.
        complete: bytes of their complete lines. Of compacted attempts these are not read, and it is all of `size`.
        incomplete: whether more than the complete lines was there: a writer was stopped within the last one, or is
            writing it.
        unreadable: lines that were no rows, as far as the compacted file says so; of JSON lines it is not yet known.
    """

    attempt: int
    path: Path
    name: str
    compacted: bool
    size: int
    complete: int
    incomplete: bool
    unreadable: int = 0


@dataclass(frozen=True)
class Input:
    """A file of the store as it was when reading began.

    Attributes:
        name: within the store.
        sha256: of its first `size` bytes; None while nobody computed it.
    """

    path: Path
    name: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """What of a store is read.

    Attributes:
        sources: of the attempts that have rows, in the order of attempts.
        inputs: every manifest and record file, by name, whether it is read or only warned about. A compacted attempt
            whose JSON lines went stands here with what they were.
        warnings: the store's, incomplete last lines, and what writers said they could not write.
    """

    store: Store
    sources: list[Source]
    inputs: list[Input]
    warnings: list[str]


def snapshot(store: Store) -> Snapshot:
    """The store's files with their sizes as of now; what is appended later is not read."""
    sources: list[Source] = []
    warnings = list(store.warnings)
    for number, attempt in enumerate(store.attempts):
        source = _source(store, number, attempt)
        if source is None:
            if attempt.compacted_path.is_file():
                name = store.name(attempt.compacted_path)
                warnings.append(f"{name} does not say what it was compacted from and is counted nowhere")
            continue
        sources.append(source)
        if source.incomplete:
            warnings.append(f"{source.name} ends with an incomplete line, which is not counted")
    return Snapshot(store, sources, list(_inputs(store, sources)), warnings + list(_losses(store)))


def beside_compaction(read: Callable[[], _Read]) -> _Read:
    """What `read` gives, begun anew a few times when a file that it was about to read went: compaction removes lines
    whose rows are in Parquet from then on."""
    for _ in range(RETRIES):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def hashed(inputs: Sequence[Input], threads: int) -> list[dict[str, Any]]:
    """`path` within the store, `size` and `sha256` of each, for a file that says what it was made from."""
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(lambda item: item.sha256 or sha256_prefix(item.path, item.size), inputs)
        return [
            {"path": item.name, "size": item.size, "sha256": digest}
            for item, digest in zip(inputs, digests, strict=True)
        ]


def compacted_source(path: Path) -> dict[str, Any] | None:
    """What a Parquet file of `compact` says that it was made from; None if it is none.

    Reads the key-value metadata of the footer, which Thrift's compact protocol keeps as plain bytes: the key, the type
    and number of the next field in a byte, the value's length with seven bits a byte, the value.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 8, 0))
            length, mark = int.from_bytes(file.read(4), "little"), file.read(4)
            if mark != b"PAR1" or length > size - 8:
                return None
            file.seek(size - 8 - length)
            footer = file.read(length)
        key = SOURCE_KEY.encode() + b"\x18"
        position = footer.rindex(key) + len(key)
        value_length = shift = 0
        while True:
            byte = footer[position]
            position += 1
            value_length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found = json.loads(footer[position : position + value_length])
        types = {"name": str, "size": int, "sha256": str, "incomplete": bool, "unreadable": int, "rows": int}
        return found if all(type(found[name]) is kind for name, kind in types.items()) else None
    except (FileNotFoundError, ValueError, IndexError, KeyError, TypeError):
        return None


def complete_size(path: Path, size: int) -> int:
    """Bytes up to the last newline among the file's first `size`."""
    with path.open("rb") as file:
        while size > 0:
            start = max(size - _BLOCK, 0)
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
    return 0


def _source(store: Store, number: int, attempt: Attempt) -> Source | None:
    name = store.name(attempt.records_path)
    size = attempt.records_path.stat().st_size if attempt.records_path.is_file() else None
    origin = compacted_source(attempt.compacted_path) if attempt.compacted_path.is_file() else None
    if size is not None and (origin is None or size >= origin["size"]):
        complete = complete_size(attempt.records_path, size)
        return Source(number, attempt.records_path, name, False, size, complete, complete < size)
    if origin is None:
        return None
    size = origin["size"]
    return Source(number, attempt.compacted_path, name, True, size, size, origin["incomplete"], origin["unreadable"])


def _inputs(store: Store, sources: Sequence[Source]) -> Iterator[Input]:
    sizes = {source.name: source for source in sources}
    found: dict[str, Input] = {}
    for folder in run_folders(store.root):
        for pattern in (MANIFEST, RECORDS, COMPACTED):
            for attempt_id, path in with_ids(folder, pattern):
                original = store.name(folder / RECORDS.format(attempt_id))
                source = sizes.get(original)
                if pattern == COMPACTED and (origin := compacted_source(path)):
                    if source is None or source.compacted:
                        found[original] = Input(path, original, origin["size"], origin["sha256"])
                    continue
                name = store.name(path)
                size = source.size if source is not None and pattern == RECORDS else path.stat().st_size
                found[name] = Input(path, name, size)
    yield from (found[name] for name in sorted(found))


def _losses(store: Store) -> Iterator[str]:
    for attempt in store.attempts:
        for field, what in (("dropped", "dropped because its queue was full"), ("failed", "could not write")):
            number = (attempt.closed or {}).get(field)
            if type(number) is int and number > 0:
                yield f"{store.name(attempt.closed_path)}: {number} rows that the writer {what} are missing"
