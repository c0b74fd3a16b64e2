"""Making a results folder whole that a kill, or somebody's hand, left in any state.

The traces are the truth, and the journal is their index: whatever of the two is missing or torn, each whole trace
counts once, and what is lost is tried again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from reroll.api import counted
from reroll.generation.entries import Entry, Place, entry_from_line, entry_of_trace
from reroll.generation.store import JOURNAL, TRACE, TRIALS, traces_path, write_journal


def mend(folder: Path, note: Callable[[Entry], object], warn: Callable[[str], None]) -> None:
    """Cuts off what is torn at the end of journal and traces, writes entries for traces that have none, and takes out
    those whose trace is gone. The caller holds the folder.

    Args:
        note: is told every entry that counts, one after another, so that none has to be kept.
        warn: told of what was lost and is tried again, and of what was found again.
    """
    journal = folder / JOURNAL
    _cut_torn_line(journal)
    known = Known(folder)
    for entry in _entries(journal, known):
        note(entry)
    found = [*_unlisted_lines(folder, known), *_unlisted_folders(folder, known)]
    for entry in found:
        note(entry)
    repeated = known.repeated()
    if known.lost:
        warn(f"{folder}: the traces of {counted(known.lost, 'attempt')} are gone; they are made again")
    if known.damaged:
        what = counted(known.damaged, "line")
        warn(f"{journal}: {what} cannot be read; what they said is read from the traces, as far as those are there")
    if repeated:
        warn(f"{journal}: {counted(repeated, 'line')} repeat what another one tells; each trace counts once")
    if known.lost or known.damaged or repeated:
        write_journal(folder, chain(_once(_entries(journal, Known(folder))), found))
    elif found:
        _append(journal, found)


class Known:
    """What the journal tells of the traces, and what it tells wrongly.

    Attributes:
        lost: entries whose trace is gone; damaged: lines that are no entries.
    """

    def __init__(self, folder: Path) -> None:
        self.lost = self.damaged = 0
        self.folders: dict[str, Entry | None] = {}
        """Folders of trials with what was said of them last, None where that is final: an attempt that is tried again
        has the same folder."""
        self._folder = folder
        self._repeated = 0
        self._offsets, self._lengths = array("Q"), array("Q")
        path = traces_path(folder)
        self._size = path.stat().st_size if path.is_file() else 0

    def takes(self, entry: Entry) -> bool:
        """Whether the trace is where the entry says, or was removed on purpose."""
        place = entry.place
        if isinstance(place, str):
            if not (self._folder / place / TRACE).is_file():
                return False
            self._repeated += place in self.folders and self.folders[place] is None
            self.folders[place] = None if entry.final else entry
            return True
        if place is not None:
            if sum(place) > self._size:
                return False
            self._offsets.append(place[0])
            self._lengths.append(place[1])
        return True

    def repeated(self) -> int:
        """Entries of one trace beyond the first."""
        return self._repeated + len(self._offsets) - len(set(self._offsets))

    def gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """Parts of the file of traces that no entry claims."""
        at = 0
        for offset, length in sorted(zip(self._offsets, self._lengths, strict=True)):
            if offset > at:
                yield at, offset
            at = max(at, offset + length)
        if at < end:
            yield at, end


def _cut_torn_line(path: Path) -> None:
    """A line that has no end was being written."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        cut = _end_of_last_line(file.fileno(), end)
        if cut < end:
            file.truncate(cut)


def _end_of_last_line(descriptor: int, end: int) -> int:
    while end:
        start = max(0, end - (1 << 16))
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _entries(path: Path, known: Known) -> Iterator[Entry]:
    """The entries whose traces are there."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                entry = entry_from_line(line)
            except ValueError:
                known.damaged += 1
                continue
            if known.takes(entry):
                yield entry
            else:
                known.lost += 1


def _unlisted_lines(folder: Path, known: Known) -> Iterator[Entry]:
    """Entries of the whole lines of the file of traces that no entry tells of; a torn end of the file is cut off."""
    path = traces_path(folder)
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        for start, stop in known.gaps(end):
            file.seek(start)
            at = start
            while at < stop:
                line = file.readline(stop - at)
                if line.endswith(b"\n") and (entry := entry_of_trace(line)) is not None:
                    yield entry.at((at, len(line)))
                at += len(line)
        if (cut := _end_of_last_line(file.fileno(), end)) < end:
            file.truncate(cut)


def _unlisted_folders(folder: Path, known: Known) -> Iterator[Entry]:
    """Entries of the trials' folders that no entry tells of, or only one of an earlier try."""
    root = folder / TRIALS
    if not root.is_dir():
        return
    for task in sorted(root.iterdir()):
        for trial in sorted(task.iterdir()) if task.is_dir() else []:
            path, place = trial / TRACE, f"{TRIALS}/{task.name}/{trial.name}"
            said = known.folders.get(place)
            if (place in known.folders and said is None) or not path.is_file():
                continue
            entry = entry_of_trace(path.read_bytes())
            if entry is not None and entry.at(place) != said:
                yield entry.at(place)


def _once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without those of a trace that an earlier one told of."""
    told: set[Place] = set()
    for entry in entries:
        if entry.place is None or entry.place not in told:
            yield entry
        if entry.place is not None and (entry.final or not isinstance(entry.place, str)):
            told.add(entry.place)


def _append(path: Path, entries: Iterable[Entry]) -> None:
    with path.open("ab") as file:
        file.writelines(entry.line() for entry in entries)
        file.flush()
        os.fsync(file.fileno())
