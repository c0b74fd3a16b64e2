"""What a results folder holds that counts: of each attempt one entry, and where its trace is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from sys import intern

from reroll.generation.entries import Entry, entry_of_trace
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, TRACE, TRIALS, read_journal, traces_path


class Holdings:
    """The entries that count, also of trials beyond `generation.n_trials`, which may be raised again.

    A trace whose entry is missing from the journal, because a kill came between the two, has one here all the same.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        """ResultsError where the journal and the traces do not fit."""
        self.folder = folder
        self.traces = traces_path(folder)
        self._entries: dict[tuple[int, int], Entry] = {}
        listed: set[int] = set()
        for entry in read_journal(folder, warn) if (folder / JOURNAL).exists() else ():
            if isinstance(entry.place, tuple):
                listed.add(entry.place[0])
            self._note(entry)
        self.size = self.traces.stat().st_size if self.traces.is_file() else 0
        self._read_lines(listed)
        self._read_tree()

    def entries(self) -> list[Entry]:
        """By position and trial."""
        return [self._entries[key] for key in sorted(self._entries)]

    def folders(self) -> Iterator[Path]:
        """Those of trials, in the layout `tree`."""
        for path in sorted((self.folder / TRIALS).glob(f"*/*/{TRACE}")):
            yield path.parent

    def _note(self, entry: Entry) -> None:
        key = entry.position, -1 if entry.outcome == "skipped" else entry.trial
        known = self._entries.get(key)
        if known is None or entry.replaces(known):
            self._entries[key] = replace(
                entry,
                source=intern(entry.source),
                source_dataset=intern(entry.source_dataset),
                prepared_sample_id=intern(entry.prepared_sample_id),
            )
        elif known.place is None and known.stamp() == entry.stamp():
            self._entries[key] = known.at(entry.place)

    def _read_lines(self, listed: set[int]) -> None:
        """Takes in what no entry tells of, and sees that the traces of the others are there."""
        awaited = {entry.place[0]: entry.place[1] for entry in self._entries.values() if isinstance(entry.place, tuple)}
        if self.traces.is_file():
            with self.traces.open("rb") as file:
                offset = 0
                for line in file:
                    if awaited.get(offset) == len(line):
                        del awaited[offset]
                    elif offset not in listed and line.endswith(b"\n") and (entry := entry_of_trace(line)):
                        self._note(entry.at((offset, len(line))))
                    offset += len(line)
        if awaited:
            raise ResultsError(
                f"{self.folder / JOURNAL} names a trace at byte {min(awaited)} of {self.traces}, and there is none; "
                "start the generation again, which mends its folder, and clean up then"
            )

    def _read_tree(self) -> None:
        listed = {entry.place for entry in self._entries.values() if isinstance(entry.place, str)}
        for folder in self.folders():
            place = folder.relative_to(self.folder).as_posix()
            if place not in listed and (entry := entry_of_trace((folder / TRACE).read_bytes())):
                self._note(entry.at(place))
