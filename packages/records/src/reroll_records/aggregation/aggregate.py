"""One pass over the rows of a store, in as many processes as pay, in bounded memory. The standard library alone.

How to aggregate something else than `summarize` does:

1. A `Collector` takes rows and keeps partial results by key, as built-in types only. It is made anew in each process by
   `make`, which is pickled: a class, or `functools.partial(YourCollector, facts_about_attempts)`.
2. `merge(key, first, second)` is a function of a module's top level that gives two partial results of a key together.
   No order is promised, neither of rows nor of partial results: sums, minima, unions and histograms are what to keep.
3. `collected = aggregate(parts, make, merge, folder, processes, memory)` reads the store. `folder` is a temporary one
   of yours, which stays until the results were read. `parts` has the parts of a store's attempts.
4. `for key, partial in spilling.merged(collected.files, merge)` gives every key once, ascending. Where there are many,
   `spilling.boundaries(collected.files, parts)` cuts them into ranges that `workers.in_processes` can be given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from reroll_records.aggregation import spilling
from reroll_records.aggregation.spilling import Item, Merge, SortedFile, SortedWriter
from reroll_records.aggregation.workers import in_processes
from reroll_records.store.lines import complete_lines, parse
from reroll_records.store.sources import Source

PAYS = 24 << 20
"""Bytes above which other processes pay for their start."""
SHARE = 64 << 20
"""Bytes of a file that are worth a process of their own; smaller files are read whole, which keeps what belongs
together together."""


class Collector(Protocol):
    """Partial results of the rows that it is given.

    Attributes:
        size: about as many bytes as it holds. Above its share of the memory, everything is taken and written out.
    """

    size: int

    def add(self, attempt: int, row: Mapping[str, Any]) -> None:
        """A row of the attempt with this number in `Store.attempts`; `lines.parse` took it."""

    def close(self, attempt: int) -> None:
        """All rows of the attempt were added, and none of what came of them was taken since the first: what waits for
        other rows of it will wait no longer."""

    def take(self) -> Iterable[Item]:
        """Everything that it holds, in any order, each key once; it then holds nothing."""


@runtime_checkable
class LineCollector(Collector, Protocol):
    """One that can do without decoding some lines."""

    def add_line(self, attempt: int, line: bytes) -> bool:
        """A line before it is decoded. Whether it was taken: that it is a row is then known, and it is not given to
        `add`."""


@dataclass(frozen=True)
class Part:
    """Lines of an attempt: those that begin in bytes `start` to `end` of a file of JSON lines.

    Attributes:
        whole: whether these are all of the attempt's.
    """

    attempt: int
    path: Path
    start: int
    end: int
    whole: bool


def parts(sources: Sequence[Source]) -> list[Part]:
    """Of those that are JSON lines: what `aggregate` reads."""
    return [
        Part(source.attempt, source.path, 0, source.complete, whole=True) for source in sources if not source.compacted
    ]


@dataclass
class Collected:
    """What a pass came to.

    Attributes:
        files: for `spilling.merged`.
        unreadable: attempt → complete lines that are no rows.
        rows: attempt → rows.
    """

    files: list[SortedFile] = field(default_factory=list)
    unreadable: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)

    def add(self, other: Collected) -> None:
        self.files += other.files
        self.unreadable += other.unreadable
        self.rows += other.rows


def aggregate(
    parts: Sequence[Part],
    make: Callable[[], Collector],
    merge: Merge,
    folder: Path,
    processes: int,
    memory: int,
) -> Collected:
    """The partial results of all rows.

    Args:
        parts: whole files; large ones are cut here.
        folder: for what does not fit into memory; it exists and is empty, or holds what another call wrote.
        memory: bytes of partial results that all processes together may hold.
    """
    total = sum(part.end - part.start for part in parts)
    if total < PAYS:
        processes = 1
    bundles = list(_bundles(parts, processes, total))
    share = memory // max(min(processes, len(bundles)), 1)
    calls = [(bundle, make, folder / f"sorted-{number}", share) for number, bundle in enumerate(bundles)]
    collected = Collected()
    for each in in_processes(collect, calls, processes):
        collected.add(each)
    collected.files = spilling.few(collected.files, merge, folder)
    return collected


def collect(parts: Sequence[Part], make: Callable[[], Collector], path: Path, memory: int) -> Collected:
    """What one process does: `parts` one after the other, with what it sorted in the file `path`."""
    collector = make()
    add_line = collector.add_line if isinstance(collector, LineCollector) else None
    collected = Collected()
    with SortedWriter(path) as writer:

        def spill() -> None:
            if items := spilling.sort(collector.take()):
                collected.files.append(writer.write(items))

        for part in parts:
            taken = len(collected.files)
            rows = unreadable = 0
            for line in complete_lines(part.path, part.start, part.end):
                if add_line is None or not add_line(part.attempt, line):
                    if (row := parse(line)) is None:
                        unreadable += 1
                        continue
                    collector.add(part.attempt, row)
                rows += 1
                if collector.size > memory:
                    spill()
            collected.rows[part.attempt] += rows
            collected.unreadable[part.attempt] += unreadable
            if part.whole and len(collected.files) == taken:
                collector.close(part.attempt)
        spill()
    return collected


def _bundles(parts: Sequence[Part], processes: int, total: int) -> Iterator[list[Part]]:
    """Parts to be read by one process one after the other; four times as many bundles as processes, so that none waits
    long for the last."""
    target = max(total // (4 * processes), SHARE)
    bundle: list[Part] = []
    size = 0
    for part in (piece for whole in parts for piece in _cut(whole, target if processes > 1 else total)):
        bundle.append(part)
        size += part.end - part.start
        if size >= target and processes > 1:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle


def _cut(part: Part, target: int) -> Iterator[Part]:
    pieces = max((part.end - part.start) // max(target, 1), 1)
    if pieces == 1:
        yield part
        return
    edges = [part.start + (part.end - part.start) * number // pieces for number in range(pieces + 1)]
    for start, end in pairwise(edges):
        yield Part(part.attempt, part.path, start, end, whole=False)
