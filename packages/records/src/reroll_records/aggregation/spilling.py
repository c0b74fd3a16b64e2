"""Sorted files of keyed partial results, and their merging. The standard library alone.

What does not fit into memory is written out in order of its keys and forgotten; at the end all sorted files are read
side by side, so that memory holds one block of each and never all keys.
"""

from __future__ import annotations

import heapq
import marshal
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

Key = tuple[Any, ...]
"""Of text, integers and tuples of them, so that all keys of an aggregation can be compared."""
Item = tuple[Key, Any]
"""A key and its partial result, both of what `marshal` writes only: numbers, text, None, tuples, lists, dictionaries
and sets of these."""
Merge = Callable[[Key, Any, Any], Any]
"""Two partial results of one key → theirs together. It may change and give back the first; it must not depend on which
is which, and is never asked about a key with one partial result."""

BLOCK = 256
"""Items that are read at once."""
FILES_AT_ONCE = 64
"""That are merged side by side; more are merged in several rounds."""


@dataclass(frozen=True)
class SortedFile:
    """Items in order of their keys, in a part of a file on disk.

    Attributes:
        firsts: the first key of each block.
        offsets: byte at which each block begins, and the one at which the last ends.
    """

    path: Path
    firsts: list[Key]
    offsets: list[int]


class SortedWriter:
    """Appends sorted files to one file on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")

    def __enter__(self) -> SortedWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, items: Iterable[Item]) -> SortedFile:
        """Items whose keys ascend. They can be read once the writer is left."""
        firsts: list[Key] = []
        offsets = [self._file.tell()]
        waiting = iter(items)
        while block := list(islice(waiting, BLOCK)):
            firsts.append(block[0][0])
            offsets.append(offsets[-1] + self._file.write(marshal.dumps(block)))
        return SortedFile(self.path, firsts, offsets)


def sort(items: Iterable[Item]) -> list[Item]:
    """In order of the keys."""
    return sorted(items, key=itemgetter(0))


def merged(
    files: Sequence[SortedFile], merge: Merge, low: Key | None = None, high: Key | None = None
) -> Iterator[Item]:
    """Every key once, ascending, with its partial results merged.

    Args:
        low: the first key of interest; None for all from the beginning.
        high: the first key that is no more of interest; None for all to the end.
    """
    last: Key | None = None
    partial: Any = None
    for key, value in heapq.merge(*(_read(each, low, high) for each in files), key=itemgetter(0)):
        if key == last:
            partial = merge(key, partial, value)
            continue
        if last is not None:
            yield last, partial
        last, partial = key, value
    if last is not None:
        yield last, partial


def few(files: Sequence[SortedFile], merge: Merge, folder: Path) -> list[SortedFile]:
    """The same items in so few sorted files that one can hold a block of each, in `folder`."""
    waiting = list(files)
    number = 0
    while len(waiting) > FILES_AT_ONCE:
        with SortedWriter(folder / f"merged-{number}") as writer:
            waiting.append(writer.write(merged(waiting[:FILES_AT_ONCE], merge)))
        del waiting[:FILES_AT_ONCE]
        number += 1
    return waiting


def boundaries(files: Sequence[SortedFile], parts: int) -> list[tuple[Key | None, Key | None]]:
    """At most `parts` ranges of keys with about as many items each, for `merged`; together they are everything."""
    firsts = sorted(key for each in files for key in each.firsts)
    cuts = sorted({firsts[len(firsts) * part // parts] for part in range(1, parts)}) if firsts else []
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def _read(source: SortedFile, low: Key | None, high: Key | None) -> Iterator[Item]:
    start = 0 if low is None else max(bisect_right(source.firsts, low) - 1, 0)
    end = len(source.firsts) if high is None else bisect_left(source.firsts, high)
    if start >= end:
        return
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offsets[start])
        for block in range(start, end):
            items = marshal.loads(file.read(source.offsets[block + 1] - source.offsets[block]))
            for item in items:
                if high is not None and item[0] >= high:
                    return
                if low is None or item[0] >= low:
                    yield item
