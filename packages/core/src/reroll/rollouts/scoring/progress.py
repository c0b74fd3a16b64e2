"""What a scoring worker is doing, told through a page of shared memory.

Messages cannot tell it: a call that keeps the interpreter lock, or kills the process, also stops the
thread that would send them. The page is written by one machine instruction a field, so it is right at
every moment, even after the process is dead.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import Final, Literal, NamedTuple

IDLE: Final = 0
LOADING: Final = 1
WORKING: Final = 2
Phase = Literal[1, 2]

SIZE = 4096
_NUMBER = struct.Struct("=Q")
_SECONDS = struct.Struct("=d")
_PHASE, _CALL, _SINCE, _REVOKED = 0, 8, 16, 24


class Snapshot(NamedTuple):
    """`call` is the number of the newest call that was begun, `since` the monotonic clock (one for the
    whole machine) when it entered `phase`."""

    phase: int
    call: int
    since: float


class ProgressPage:
    """The page, as either side sees it. `call`, `since` and `phase` are the worker's, `revoked` the pool's.

    A process that a verifier forks has the page too, and what it does there is not the worker's: it writes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._owner = os.getpid()
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), SIZE)

    @classmethod
    def create(cls) -> tuple[ProgressPage, Path]:
        """A page of zeros, and the file that the other side opens it by."""
        handle, name = tempfile.mkstemp(prefix="reroll-scoring-", suffix=".page")
        try:
            os.ftruncate(handle, SIZE)
        finally:
            os.close(handle)
        return cls(Path(name)), Path(name)

    def enter(self, phase: Phase, call: int, now: float) -> None:
        if os.getpid() != self._owner:
            return
        # The phase goes first to idle and is set last: whoever reads a phase twice around the other
        # fields, and finds it and the call unchanged, has read fields that belong together.
        _NUMBER.pack_into(self._page, _PHASE, IDLE)
        _SECONDS.pack_into(self._page, _SINCE, now)
        _NUMBER.pack_into(self._page, _CALL, call)
        _NUMBER.pack_into(self._page, _PHASE, phase)

    def rest(self) -> None:
        """No call is at work any more."""
        if os.getpid() == self._owner:
            _NUMBER.pack_into(self._page, _PHASE, IDLE)

    def read(self) -> Snapshot:
        """What the worker does now; idle if it changed while it was read."""
        phase, call = self._number(_PHASE), self._number(_CALL)
        (since,) = _SECONDS.unpack_from(self._page, _SINCE)
        if phase != self._number(_PHASE) or call != self._number(_CALL):
            return Snapshot(IDLE, self._number(_CALL), 0.0)
        return Snapshot(phase, call, since)

    def revoke(self, call: int) -> None:
        """Calls up to this number that were not begun shall be skipped."""
        _NUMBER.pack_into(self._page, _REVOKED, call)

    @property
    def revoked(self) -> int:
        return self._number(_REVOKED)

    def close(self) -> None:
        self._page.close()

    def _number(self, offset: int) -> int:
        number: int = _NUMBER.unpack_from(self._page, offset)[0]
        return number
