"""The results of a folder: the traces, and the journal, which says what they came to and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reroll.config.atomic import replacing
from reroll.generation.entries import Entry, Place, entry_from_line, parsed
from reroll.generation.protocol import ResultsError
from reroll.traces.names import FILE as TRACES
from reroll.traces.names import MARKER
from reroll.traces.saved import mark_complete, step_directory

JOURNAL = "journal.jsonl"
LOGS = "logs"
TRIALS = "tasks"
"""Of the layout `tree`: the folder with one for each task, and in it one for each trial."""
TRACE = "trace.json"
"""In the folder of a trial."""


def traces_path(folder: Path) -> Path:
    """The file of all traces: where runs keep their saved rollouts, so that what reads those reads these."""
    return step_directory(folder, 0) / TRACES


def mark_whole(folder: Path) -> None:
    """Says that the file of traces is whole, as a run's steps say it."""
    path = traces_path(folder)
    if path.exists():
        mark_complete(folder, 0, count_lines(path))


def unmark(folder: Path) -> None:
    """Says that it is being written."""
    (traces_path(folder).parent / MARKER).unlink(missing_ok=True)


def count_lines(path: Path) -> int:
    """Lines of a file that may be larger than memory, without one at the end that is being written."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def write_journal(folder: Path, entries: Iterable[Entry]) -> None:
    """A journal of these entries in place of what is there; they may be read from it meanwhile."""
    with replacing(folder / JOURNAL) as file:
        file.writelines(entry.line() for entry in entries)


def read_journal(folder: Path, warn: Callable[[str], None]) -> Iterator[Entry]:
    """The entries of a results folder, in the order in which they were written: of one attempt there may be several
    where it was tried again, see `Tally`. A last line that is being written is left out.

    Args:
        warn: told of lines that cannot be read; the next start of the generation makes them again from the traces.
    """
    path = folder / JOURNAL
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise ResultsError(f"{folder} holds no results of `reroll generate`: it has no {JOURNAL}") from None
    damaged, first = 0, ""
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                yield entry_from_line(line)
            except ValueError as error:
                damaged += 1
                first = first or f"line {number}: {error}"
    if damaged:
        warn(f"{path}: {damaged} lines cannot be read and are left out, first {first}")


def read_trace(folder: Path, entry: Entry) -> Mapping[str, Any] | None:
    """The saved rollout of an attempt, None where it was removed; ResultsError where it cannot be read."""
    if entry.place is None:
        return None
    return trace_at(folder, entry.place, f"{entry.prepared_sample_id}, trial {entry.trial}")


def trace_at(folder: Path, place: Place, name: str) -> Mapping[str, Any]:
    """The saved rollout at a place; ResultsError where it cannot be read.

    Args:
        name: of the attempt, for that error.
    """
    path = folder / place / TRACE if isinstance(place, str) else traces_path(folder)
    try:
        with path.open("rb") as file:
            if isinstance(place, str):
                found = parsed(file.read())
            else:
                file.seek(place[0])
                found = parsed(file.read(place[1]))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: the trace of {name}: {error}") from None
    if not isinstance(found, dict):
        raise ResultsError(f"{path}: the trace of {name} is no table")
    return found
