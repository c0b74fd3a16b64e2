"""Finished attempts of a store in Parquet, which every command reads as it reads their JSON lines. Of the extra
`analysis`.

What is where at any moment, so that a stop at any of them loses nothing and the next call goes on:

1. The rows are written to a folder of their own beside the attempt, `.compact-<attempt>-…`, and brought to the disk.
2. They are read back and compared with the lines, all of them.
3. The file gets its name, records-<attempt>.parquet. Readers take the lines as long as they are there.
4. If the caller wants it, the lines go, once their size and SHA-256 are seen to be what was compared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reroll_records.compaction.conversion import ConversionError, check, contents, write
from reroll_records.store.appending import sync_folder
from reroll_records.store.compacted import ForeignFileError, Origin, origin_of
from reroll_records.store.database import require_duckdb
from reroll_records.store.layout import Attempt, Store, scan, sha256_prefix
from reroll_records.store.liveness import claim, lock

IDLE_SECONDS = 3600.0
MEMORY_BYTES = 1 << 30
_STALE_SECONDS = 86_400.0

Status = Literal["compacted", "present", "left", "failed"]
"""`compacted`: now. `present`: it was already. `left`: as it is, for a reason that is no fault, or not one of this
machine. `failed`: the disk, the memory or the system did not allow it; another time it may."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a store is compacted.

    Attributes:
        delete_originals: whether lines go whose rows are all in Parquet.
        delete_unreadable: whether they go even if some of them are no rows, which then are lost.
        idle_seconds: since the last row, after which an attempt counts as finished that nobody closed.
        memory_bytes: that DuckDB may hold; lines of tens of megabytes need some of them at once.
        threads: of DuckDB.
    """

    delete_originals: bool = False
    delete_unreadable: bool = False
    idle_seconds: float = IDLE_SECONDS
    memory_bytes: int = MEMORY_BYTES
    threads: int = 2


@dataclass(slots=True)
class AttemptOutcome:
    """What became of an attempt.

    Attributes:
        name: of its lines within the store, whether they are still there or not.
        reason: why it was left, or failed.
        before: bytes of the lines.
        after: bytes in Parquet; None where there are none.
        rows: in Parquet.
        not_compacted: lines that are no rows, the incomplete last one among them; they are not in Parquet.
        lines: whether the lines are `kept`, `deleted` now, or were `gone` before.
        kept_because: why they are kept although they were to go.
    """

    name: str
    status: Status = "left"
    reason: str | None = None
    before: int = 0
    after: int | None = None
    rows: int = 0
    not_compacted: int = 0
    lines: Literal["kept", "deleted", "gone"] = "kept"
    kept_because: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of a store.

    Attributes:
        outcomes: of its attempts, in their order.
        warnings: what in the store could not be used, each a sentence.
    """

    outcomes: list[AttemptOutcome]
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"attempts": [found.to_json() for found in self.outcomes], "warnings": self.warnings}


def compact(
    path: Path, options: Options | None = None, tell: Callable[[AttemptOutcome], None] = lambda outcome: None
) -> Compaction:
    """Copies the finished attempts of a store into Parquet.

    Args:
        path: a store, a lineage's folder or a run's.
        tell: called with each outcome as it comes.

    Raises:
        StoreError: there is no store, or DuckDB is not installed.
    """
    require_duckdb()
    store = scan(path)
    outcomes = []
    for attempt in store.attempts:
        outcomes.append(_compact(store, attempt, options or Options()))
        tell(outcomes[-1])
    return Compaction(outcomes, list(store.warnings))


class _LeftError(Exception):
    """An attempt stays as it is; the message says why."""


def _compact(store: Store, attempt: Attempt, options: Options) -> AttemptOutcome:
    outcome = AttemptOutcome(store.name(attempt.records_path))
    try:
        if attempt.records_path.is_file():
            outcome.before = attempt.records_path.stat().st_size
            with _claimed(attempt, options) as locked:
                _clean_up(attempt, locked)
                _convert(attempt, options, outcome, locked)
        else:
            _of_parquet_alone(attempt, outcome)
    except (_LeftError, ConversionError, ForeignFileError) as error:
        outcome.status, outcome.reason = "left", str(error)
    except OSError as error:
        outcome.status, outcome.reason = "failed", _said(error)
    return outcome


def _said(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


@contextmanager
def _claimed(attempt: Attempt, options: Options) -> Iterator[bool]:
    """Keeps other compactions away, and yields whether the file system knows locks.

    A closed attempt has no writer. Of another one the writer holds the manifest while it lives.
    """
    if attempt.closed is None:
        idle = time.time() - attempt.records_path.stat().st_mtime
        if idle < options.idle_seconds:
            raise _LeftError(
                f"its writer has not closed it and may be at work: its last row came {max(idle, 0):.0f} s ago, and it "
                f"counts as finished after {options.idle_seconds:.0f} s"
            )
    try:
        held = claim(attempt.manifest_path if attempt.closed is None else attempt.closed_path)
    except BlockingIOError:
        who = "another compaction is" if attempt.closed else "its writer, or another compaction, is"
        raise _LeftError(f"{who} at work on it") from None
    with held:
        yield held.locked


def _of_parquet_alone(attempt: Attempt, outcome: AttemptOutcome) -> None:
    outcome.lines = "gone"
    if not attempt.compacted_path.is_file():
        raise _LeftError("it has no rows")
    _told(outcome, "present", origin_of(attempt.compacted_path), attempt.compacted_path)


def _convert(attempt: Attempt, options: Options, outcome: AttemptOutcome, locked: bool) -> None:
    origin, new = _earlier(attempt), False
    if origin is None or origin.size != outcome.before:
        origin, new = _make(attempt, options), True
    _told(outcome, "compacted" if new else "present", origin, attempt.compacted_path)
    if options.delete_originals:
        outcome.kept_because = _reason_to_keep(attempt, options, origin, locked)
        if outcome.kept_because is None:
            try:
                outcome.kept_because = _delete(attempt, options, origin, checked=new)
            except OSError as error:
                outcome.kept_because = _said(error)
        outcome.lines = "kept" if outcome.kept_because else "deleted"


def _told(outcome: AttemptOutcome, status: Status, origin: Origin, compacted: Path) -> None:
    outcome.status, outcome.before, outcome.after = status, origin.size, compacted.stat().st_size
    outcome.rows, outcome.not_compacted = origin.rows, origin.unreadable + origin.incomplete


def _earlier(attempt: Attempt) -> Origin | None:
    """What the attempt's Parquet file was made of: the lines as they are, or their beginning.

    Raises:
        _LeftError: it was made of others; they would be lost with it.
    """
    if not attempt.compacted_path.is_file():
        return None
    origin = origin_of(attempt.compacted_path)
    same = attempt.records_path.stat().st_size >= origin.size
    if not same or sha256_prefix(attempt.records_path, origin.size) != origin.sha256:
        raise _LeftError(
            f"{attempt.compacted_path.name} was made of other lines than these: move away the one that is not wanted"
        )
    return origin


def _make(attempt: Attempt, options: Options) -> Origin:
    """Writes, checks and names the Parquet file."""
    what = contents(attempt.records_path)
    with _workspace(attempt) as folder:
        written = write(attempt.records_path, what, folder, options.memory_bytes, options.threads)
        origin = check(attempt.records_path, written, folder, options.memory_bytes)
        written.chmod(attempt.records_path.stat().st_mode & 0o777)
        written.replace(attempt.compacted_path)
        sync_folder(attempt.folder)
    return origin


def _reason_to_keep(attempt: Attempt, options: Options, origin: Origin, locked: bool) -> str | None:
    if attempt.closed is None and not locked:
        return "this file system knows no locks: whether their writer is dead cannot be told"
    if not origin.only_rows and not options.delete_unreadable:
        number = origin.unreadable + origin.incomplete
        return f"{number} {'line is no row and is' if number == 1 else 'lines are no rows and are'} not in Parquet"
    return None


def _delete(attempt: Attempt, options: Options, origin: Origin, checked: bool) -> str | None:
    """Deletes the lines, or returns why they are kept."""
    if not checked:
        with _workspace(attempt) as folder:
            try:
                check(attempt.records_path, attempt.compacted_path, folder, options.memory_bytes)
            except ConversionError as error:
                return f"{attempt.compacted_path.name} is not what it was: {error}"
        with attempt.compacted_path.open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(attempt.folder)
    with attempt.records_path.open("rb+") as file:
        lock(file.fileno())  # against a writer that comes back: its next row finds the file gone, and says so
        size = os.fstat(file.fileno()).st_size
        if size != origin.size or sha256_prefix(attempt.records_path, size) != origin.sha256:
            return "they changed meanwhile"
        attempt.records_path.unlink()
    sync_folder(attempt.folder)
    return None


@contextmanager
def _workspace(attempt: Attempt) -> Iterator[Path]:
    """On the disk where the result is to be, so that it only needs a name there."""
    folder = Path(tempfile.mkdtemp(prefix=_workspace_prefix(attempt), dir=attempt.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clean_up(attempt: Attempt, locked: bool) -> None:
    """Removes what a compaction that was stopped has left: another one cannot be at work, or would not be for a day."""
    for folder in attempt.folder.iterdir():
        mine = f"{folder.name.rpartition('-')[0]}-" == _workspace_prefix(attempt) and folder.is_dir()
        if mine and (locked or time.time() - folder.stat().st_mtime > _STALE_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)


def _workspace_prefix(attempt: Attempt) -> str:
    return f".compact-{attempt.id}-"
