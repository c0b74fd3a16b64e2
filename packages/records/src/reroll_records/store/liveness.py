"""Locks that say who is at work on a file, and end with the process that holds them. The standard library alone.

They are advisory locks on whole files (flock): a process that dies lets go of them, however it dies. Some network file
systems know none, or know them within one machine only; what is done there without them is said where it is done.
For POSIX systems, as `appending` is.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Takes the lock of an open file, and keeps it until `unlock` or until the last descriptor of this opening closes.

    Args:
        shared: with others who share it too.
        wait: for those who hold it against this one.

    Returns:
        False where the file system knows no locks, or does not lock a file that was opened like this; nothing is
        locked then.

    Raises:
        BlockingIOError: another one holds it, and this was not to wait.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if not wait and error.errno in _TAKEN:
            raise BlockingIOError(error.errno, "another process holds the lock") from None
        return False
    return True


def unlock(descriptor: int) -> None:
    """Lets go of a lock that `lock` took."""
    with suppress(OSError):  # it ends with the descriptor at the latest
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class Hold:
    """Says, as long as it is open and its process lives, that someone is at work. Also a context manager.

    Attributes:
        locked: False where the file system knows no locks: nobody can see the hold there.
    """

    def __init__(self, descriptor: int, locked: bool) -> None:
        self._descriptor: int | None = descriptor
        self.locked = locked

    def close(self) -> None:
        """Ends the hold. A second time it does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def hold(path: Path) -> Hold:
    """Says of a file that its writer is alive. Several may say so of one file.

    Where children are started by `fork` alone they hold it too; Python does not pass it to other programs.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY)
    return Hold(descriptor, lock(descriptor, shared=True))


def is_held(path: Path) -> bool:
    """Whether a process says of the file that its writer is alive. False where the file is not there, and where the
    file system knows no locks: ask there how long nothing was written, too."""
    try:
        claim(path).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def claim(path: Path) -> Hold:
    """A hold of which there is no other.

    Raises:
        BlockingIOError: another one holds the file.
        OSError: the file cannot be opened.
    """
    descriptor = _open(path)
    try:
        return Hold(descriptor, lock(descriptor, wait=False))
    except BlockingIOError:
        os.close(descriptor)
        raise


def _open(path: Path) -> int:
    """To write where that is allowed: network file systems lock nothing against others that is open to read alone."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY)
