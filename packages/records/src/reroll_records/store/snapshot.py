"""What of an earlier input snapshot, as tables and summaries hold it, is still as it was. The standard library alone.

A snapshot (`sources.snapshot`, in what summaries and tables say of their inputs) names the files that writers wrote.
Where one was compacted and is gone, a snapshot still names that file, with the size and the digest that it had: a store
reads the same before and after, and so do its snapshots.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reroll_records.store import sources
from reroll_records.store.layout import Store, StoreError, sha256_prefix


@dataclass(frozen=True, slots=True)
class Input:
    """A file of a store as it was read.

    Attributes:
        path: within the store, with forward slashes.
        size: bytes that it had.
        sha256: of these bytes.
    """

    path: str
    size: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Input:
        return cls(str(found["path"]), int(found["size"]), str(found["sha256"]))


def recorded_inputs(path: Path) -> list[Input]:
    """The inputs that a selection table, or the summary.json of a summary, says it was made of.

    Raises:
        StoreError: the file cannot be read, or names no inputs.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is no JSON ({error}): {_WANTED}") from None
    listed = content.get("inputs") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(map(_is_input, listed)):
        raise StoreError(f"{path} names no inputs with path, size and sha256: {_WANTED}")
    return [Input.from_json(found) for found in listed]


_WANTED = "give a table of `reroll records select`, or the summary.json of `reroll records summarize`"


def _is_input(found: Any) -> bool:
    kinds = {"path": str, "size": int, "sha256": str}
    return isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in kinds.items())


def changed(store: Store, inputs: Sequence[Input]) -> list[tuple[Input, str]]:
    """What of an earlier snapshot is no longer as it was, with what is told of each file; none if all of it is.

    A file that has grown since counts as it was, and so does one that was compacted. Files are found by their names
    wherever they lie: snapshots of a store and of one of its lineages tell the same.

    Raises:
        OSError: a file cannot be read.
    """
    present = _Present(sources.snapshot(store).inputs)
    found = []
    for recorded in inputs:
        now = present.find(recorded.path)
        if now is None:
            told: str | None = "is gone"
        elif now.sha256 is None:
            told = _of_file(now, recorded)
        else:
            told = _of_compacted(now.size, now.sha256, recorded)
        if told:
            found.append((recorded, told))
    return found


def _of_file(now: sources.Input, recorded: Input) -> str | None:
    if now.size < recorded.size:
        return f"has {now.size} bytes, and had {recorded.size}"
    digest = sha256_prefix(now.path, recorded.size)
    if digest != recorded.sha256:
        return f"holds something else: its first {recorded.size} bytes had SHA-256 {recorded.sha256}, have {digest}"
    return None


def _of_compacted(size: int, sha256: str, recorded: Input) -> str | None:
    if size < recorded.size:
        return f"had {size} bytes when it was compacted, and {recorded.size} before"
    if size > recorded.size:
        return (
            f"has grown from {recorded.size} to {size} bytes before it was compacted: "
            "whether it began as recorded cannot be told any more"
        )
    if sha256 != recorded.sha256:
        return f"was compacted with another SHA-256: it was {recorded.sha256}, then {sha256}"
    return None


class _Present:
    """Files of a store by their paths, or else by their names, which carry the id of an attempt, where one file alone
    has that name."""

    def __init__(self, inputs: Sequence[sources.Input]) -> None:
        self._by_path = {found.name: found for found in inputs}
        names = Counter(map(_last, self._by_path))
        self._by_name = {_last(path): found for path, found in self._by_path.items() if names[_last(path)] == 1}

    def find(self, path: str) -> sources.Input | None:
        return self._by_path.get(path) or self._by_name.get(_last(path))


def _last(path: str) -> str:
    return path.rpartition("/")[2]
