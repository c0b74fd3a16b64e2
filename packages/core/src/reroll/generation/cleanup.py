"""Making a results folder small: what a resume needs stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from reroll.api import counted
from reroll.config.atomic import PARTIAL, replacing, sync_folder
from reroll.generation.entries import Entry
from reroll.generation.holdings import Holdings
from reroll.generation.merging import Folder, Warn
from reroll.generation.store import JOURNAL, LOGS, TRACE, TRIALS, count_lines, write_journal
from reroll.launch.attempts import run_lock
from reroll.traces.names import MARKER
from reroll.traces.saved import mark_complete

Drop = Literal["all", "failed", "errors"]
BLOCK = 1 << 20


@dataclass
class Freed:
    """Bytes that a clean-up frees, by what they were.

    Attributes:
        traces: number of them, `bytes["traces"]` long together.
    """

    bytes: dict[str, int] = field(default_factory=dict)
    traces: int = 0

    def add(self, kind: str, count: int) -> None:
        self.bytes[kind] = self.bytes.get(kind, 0) + count

    @property
    def total(self) -> int:
        return sum(self.bytes.values())

    def __str__(self) -> str:
        parts = [f"{count:,} of {kind}" for kind, count in self.bytes.items() if count]
        return f"{counted(self.total, 'byte')}" + (f" ({', '.join(parts)})" if parts else "")


def clean(folder: Folder, drop: Drop | None, dry_run: bool, warn: Warn) -> Freed:
    """Removes logs, what a kill left half written, entries and traces that do not count, and those of `drop`.

    Whenever it is killed, every attempt that counts has its entry, every trace that is kept is there whole, and a
    resume, or another clean-up, puts right where it is.

    Args:
        drop: traces to remove beside: of all attempts, of failed ones, or of errors. Their entries stay.
    """
    with run_lock(folder.path, warn, "generation.results_dir"):
        freed = Freed()
        held = Holdings(folder.path, warn)
        for path in _leavings(folder.path):
            freed.add("half-written files", path.lstat().st_size)
            if not dry_run:
                path.unlink()
        logs = folder.path / LOGS
        if logs.is_dir() and not logs.is_symlink():
            freed.add("logs", sum(path.lstat().st_size for path in logs.rglob("*") if not path.is_dir()))
            if not dry_run:
                shutil.rmtree(logs)
        _shrink(held, drop, dry_run, freed)
    return freed


def _shrink(held: Holdings, drop: Drop | None, dry_run: bool, freed: Freed) -> None:
    """Leaves one entry of each attempt, and the traces that those name without the dropped ones."""
    entries = [entry.at(None) if _dropped(entry, drop) else entry for entry in held.entries()]
    moved = _moved(entries)
    lines = sorted(_places(entries))
    _count(held, entries, moved, lines, freed)
    if dry_run:
        return
    stays = sum(length for _, length in lines)
    if stays == held.size:
        write_journal(held.folder, moved)
    else:
        _rewrite(held, entries, moved, lines)
    # After the journal: what is removed here and not named there is only taken up again where a kill comes between.
    for folder in _unnamed_folders(held, entries):
        (folder / TRACE).unlink()
        _remove_empty(folder, held.folder / TRIALS)


def _rewrite(held: Holdings, entries: Sequence[Entry], moved: Sequence[Entry], lines: list[tuple[int, int]]) -> None:
    """Two files cannot be replaced at once. In between, the journal does not say where the traces are that move, and so
    says nothing that is wrong of the old file or of the new one; each of them says itself which attempt's it is."""
    marker = held.traces.parent / MARKER
    marked = marker.exists()
    with replacing(held.traces) as file:
        with held.traces.open("rb") as source:
            _copy(source, file, lines)
        file.flush()
        os.fsync(file.fileno())
        unplaced = [
            before if before.place == after.place else after.at(None)
            for before, after in zip(entries, moved, strict=True)
        ]
        write_journal(held.folder, unplaced)
        marker.unlink(missing_ok=True)
    write_journal(held.folder, moved)
    if marked:
        mark_complete(held.folder, 0, len(lines))


def _dropped(entry: Entry, drop: Drop | None) -> bool:
    return (
        drop == "all"
        or (drop == "failed" and entry.outcome == "failed")
        or (drop == "errors" and entry.outcome == "error")
    )


def _places(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    """Of lines in the file of traces."""
    for entry in entries:
        if isinstance(entry.place, tuple):
            yield entry.place


def _unnamed_folders(held: Holdings, entries: Iterable[Entry]) -> list[Path]:
    """Of trials, in the layout `tree`, whose trace no entry names."""
    named = {entry.place for entry in entries}
    return [folder for folder in held.folders() if folder.relative_to(held.folder).as_posix() not in named]


def _moved(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with their places in a file that holds nothing else."""
    offsets: dict[int, int] = {}
    end = 0
    for offset, length in sorted(_places(entries)):
        offsets[offset] = end
        end += length
    return [
        entry.at((offsets[entry.place[0]], entry.place[1])) if isinstance(entry.place, tuple) else entry
        for entry in entries
    ]


def _count(
    held: Holdings, entries: Sequence[Entry], moved: Sequence[Entry], lines: list[tuple[int, int]], freed: Freed
) -> None:
    if held.size:
        freed.traces += count_lines(held.traces) - len(lines)
        freed.add("traces", held.size - sum(length for _, length in lines))
    for folder in _unnamed_folders(held, entries):
        freed.traces += 1
        freed.add("traces", (folder / TRACE).lstat().st_size)
    journal = held.folder / JOURNAL
    before = journal.stat().st_size if journal.exists() else 0
    freed.add("journal", max(0, before - sum(len(entry.line()) for entry in moved)))


def _copy(source: BinaryIO, file: BinaryIO, lines: Iterable[tuple[int, int]]) -> None:
    for offset, length in _runs(lines):
        source.seek(offset)
        while length:
            block = source.read(min(length, BLOCK))
            if not block:
                raise OSError(f"{source.name} became shorter while it was read")
            file.write(block)
            length -= len(block)


def _runs(lines: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Offset and length of what follows upon each other."""
    start = end = 0
    for offset, length in lines:
        if offset != end:
            yield start, end - start
            start = offset
        end = offset + length
    yield start, end - start


def _leavings(folder: Path) -> Iterator[Path]:
    """What was being written when a process was killed."""
    places = [folder.glob(f"*{PARTIAL}"), (folder / "rollouts").glob(f"*/*{PARTIAL}")]
    for found in (*places, (folder / TRIALS).glob(f"*/*/*{PARTIAL}")):
        yield from sorted(path for path in found if path.is_file() or path.is_symlink())


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    sync_folder(folder)
