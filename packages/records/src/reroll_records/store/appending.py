"""Whole rows at the end of a record file, whatever happens to the process, the disk or its neighbours. The standard
library alone, on POSIX systems.

A row is one line. What keeps it whole:

- The file is opened to append and the rows of a call go out together, under a lock that all writers of the file take.
- The last byte is looked at first. If it is no newline, someone died in the middle of a row: a newline goes first, so
  that the torn row is a line of its own and the next one is not swallowed with it.
- A write that fails in the middle of a row (a full disk, a quota) is cut back to the last whole row.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from reroll_records.store.liveness import lock, unlock

logger = logging.getLogger("reroll")

_NEWLINE = b"\n"
LOCK_SECONDS = 5.0
"""That an append waits for another process; each of its own appends takes milliseconds."""


class AppendError(OSError):
    """Rows could not be appended. `errno` says why.

    Attributes:
        whole: rows of the call, from its first one on, that are whole in the file; the others are lost.
    """

    def __init__(self, path: Path, whole: int, rows: int, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(error.errno, f"{whole} of {rows} rows were appended: {reason}", str(path))
        self.whole = whole


class Appender:
    """A record file that is open to append. For one thread at a time; processes may have the same file open. Also a
    context manager.

    Attributes:
        path: of the file.
        locked: False once the file system has refused a lock. Rows are appended without one then, which is safe as
            long as every writer has a file of its own, as every attempt has.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.locked = True
        self._descriptor: int | None = descriptor

    @classmethod
    def open(cls, path: Path) -> Appender:
        """Opens a file of rows, and makes it where there is none; its folder must be there.

        Raises:
            OSError: the file cannot be opened to read and append.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        sync_folder(path.parent)
        return cls(path, descriptor)

    def append(self, rows: Sequence[bytes]) -> None:
        """Appends rows, each without its newline. When it returns the system has them: no end of this process loses
        them any more, only that of the machine (`close`).

        Raises:
            AppendError: the disk or the file took no more. It says how many rows are whole; what was written of the
                next one is taken back where that is safe. Later calls work again once there is room.
            ValueError: a row has a newline within, so that it would be two lines; nothing was written.
        """
        if any(_NEWLINE in row for row in rows):
            raise ValueError("a row has a newline within: write it as JSON on one line")
        if not rows:
            return
        descriptor = self._open_descriptor()
        block = b"".join(part for row in rows for part in (row, _NEWLINE))
        whole = 0
        try:
            with self._exclusively(descriptor) as alone:
                start = self._end(descriptor)
                torn = start > 0 and os.pread(descriptor, 1, start - 1) != _NEWLINE
                data = _NEWLINE + block if torn else block
                done = 0
                try:
                    with memoryview(data) as view:
                        while done < len(data):
                            done += _write(descriptor, view[done:])
                except OSError:
                    whole, kept = _whole(rows, done - torn)
                    if alone:
                        _cut_back(descriptor, start, done, kept + torn if kept else 0)
                    raise
        except OSError as error:
            raise AppendError(self.path, whole, len(rows), error) from None

    def close(self) -> None:
        """Sees to it that the rows outlive the machine, and closes the file. A second time it does nothing.

        This is where a file is made durable, and not `append`: the rows of a process that dies are safe without it, a
        machine's crash costs the last seconds of evidence at most, and to wait for a disk at every row would cost
        every run.

        Raises:
            OSError: rows that the system had taken could not be brought to the disk. The file is closed nevertheless.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what cannot be synchronised has nothing to lose
                raise
        finally:
            os.close(descriptor)

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed: open it again to append")
        return self._descriptor

    @contextmanager
    def _exclusively(self, descriptor: int) -> Iterator[bool]:
        """Yields whether the lock is held. Whoever waits for it waits for one call of another's; for somebody who holds
        on to it, rows are not kept back for ever."""
        alone = self._wait_for_lock(descriptor)
        if not alone and self.locked:
            self.locked = False
            logger.warning("%s cannot be locked: no other process may append to it", self.path)
        try:
            yield alone
        finally:
            if alone:
                unlock(descriptor)

    def _wait_for_lock(self, descriptor: int) -> bool:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return lock(descriptor, wait=False)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.002)

    def _end(self, descriptor: int) -> int:
        """The file's size.

        Raises:
            FileNotFoundError: the file was removed since it was opened, and rows would go nowhere.
        """
        found = os.fstat(descriptor)
        # No links: the file was deleted, by a compaction that took its writer for dead, say. Some network and layered
        # file systems tell no links of a file that is there, so that its name is asked too: it must lead to this file
        # and not to one that has taken its place.
        if not found.st_nlink and not (self.path.exists() and os.path.samestat(found, self.path.stat())):
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was open")
        return found.st_size


def _write(descriptor: int, data: memoryview) -> int:
    if not (taken := os.write(descriptor, data)):
        raise OSError(errno.EIO, "the file takes nothing")  # without this the caller would try for ever
    return taken


def _whole(rows: Sequence[bytes], done: int) -> tuple[int, int]:
    """How many rows are whole in the first `done` bytes of their lines, and the bytes of these."""
    end = 0
    for number, row in enumerate(rows):
        if end + len(row) + 1 > done:
            return number, end
        end += len(row) + 1
    return len(rows), end


def _cut_back(descriptor: int, start: int, done: int, kept: int) -> None:
    """Leaves `kept` of the `done` bytes that were written from `start` on, unless another process, which took no lock,
    has written behind them. What cannot be cut back stays a torn row, which the next call puts a newline behind."""
    with suppress(OSError):
        if os.fstat(descriptor).st_size == start + done:
            os.ftruncate(descriptor, start + kept)


def sync_folder(folder: Path) -> None:
    """Makes a new file's name outlive the machine. Some systems cannot do so with a folder, and do it by themselves."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
