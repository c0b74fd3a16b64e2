"""Keeping attempts: each is on disk before it counts as finished."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import queue
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from reroll.config.atomic import naming, sync_folder, write_whole
from reroll.generation.entries import Entry, Place
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, TRACE, TRIALS, traces_path
from reroll.traces.saved import SavedGroup, record_line, trace_record

TOGETHER_SECONDS = 0.02
"""What comes up for so long is written, and had on disk, together."""

Layout = Literal["journal", "tree"]


class Finished(NamedTuple):
    """An attempt to keep: its entry without a place, and its trace as a group of one, or None for a skipped task."""

    entry: Entry
    saved: SavedGroup | None


class Queued(NamedTuple):
    """What waits to be written, and who hears of it once it is on disk."""

    finished: list[Finished]
    told: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class ResultsWriter:
    """Appends to traces and journal in a thread of its own, what came up meanwhile together.

    Traces are on disk before the journal names them, so that whatever a kill interrupts, an entry has its trace. After
    a failure nothing more is written: what is on disk is what the next start finds.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout
        self._failure: BaseException | None = None
        self._closed = False
        self._queue: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self._journal = _open(folder / JOURNAL)
        self._traces = _open(traces_path(folder)) if layout == "journal" else None
        self._thread = threading.Thread(target=self._work, name="results", daemon=True)
        self._thread.start()

    async def add(self, finished: list[Finished]) -> None:
        """Returns once they are on disk; OSError names the file that could not be written, ResultsError the attempt
        whose trace is nothing that can be saved."""
        assert not self._closed, "nothing is added after the end"
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        self._queue.put(Queued(finished, told, loop))
        await told

    def close(self) -> None:
        """Writes what is queued. What could not be written was told to those who wait for it."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        for file in (self._traces, self._journal):
            with suppress(OSError):  # of what a failed write left in memory
                if file is not None:
                    file.close()

    def _work(self) -> None:
        ending = False
        while not ending:
            taken = [self._queue.get()]
            time.sleep(TOGETHER_SECONDS)
            while not self._queue.empty():
                taken.append(self._queue.get())
            ending = None in taken
            batch = [item for item in taken if item is not None]
            if batch and self._failure is None:
                try:
                    self._write([item for queued in batch for item in queued.finished])
                except Exception as error:
                    self._failure = error
            _tell(batch, self._failure)

    def _write(self, finished: list[Finished]) -> None:
        entries = [item.entry.at(self._keep(item)) for item in finished]
        if self._traces is not None:
            with naming(traces_path(self.folder)):
                _sync(self._traces)
        with naming(self.folder / JOURNAL):
            self._journal.writelines(entry.line() for entry in entries)
            _sync(self._journal)

    def _keep(self, item: Finished) -> Place | None:
        """Writes the trace, and says where it is."""
        if item.saved is None:
            return None
        record = trace_record(item.saved, 0)
        record["info"]["reroll"]["generation"] = item.entry.stamp()
        try:
            line = record_line(record)
        except (TypeError, ValueError, RecursionError) as error:
            name = f"{item.entry.prepared_sample_id}, trial {item.entry.trial}"
            raise ResultsError(f"the trace of {name} cannot be saved as JSON: {error}") from error
        if self._traces is None:
            place = f"{TRIALS}/{folder_name(item.entry)}/{item.entry.trial}"
            folder = self.folder / place
            _make(folder)
            write_whole(folder / TRACE, line)
            return place
        encoded = line.encode()
        with naming(traces_path(self.folder)):
            offset = self._traces.tell()
            self._traces.write(encoded)
        return offset, len(encoded)


def folder_name(entry: Entry) -> str:
    """A task's folder in the layout `tree`: its id as far as a file system takes it, and what makes it its own."""
    shown = re.sub(r"[^A-Za-z0-9._+=-]+", "_", entry.prepared_sample_id)[:80].lstrip(".") or "task"
    digest = hashlib.sha256(f"{entry.source}\0{entry.position}".encode()).hexdigest()[:8]
    return f"{shown}-{digest}"


def _open(path: Path) -> BinaryIO:
    _make(path.parent)
    file = path.open("ab")
    sync_folder(path.parent)
    return file


def _make(folder: Path) -> None:
    """Has the folder's name on disk, too: a machine that loses power must not lose the folder with what is in it."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    if not os.fstat(file.fileno()).st_nlink:
        # The system goes on writing to a file that has no name, and all of it would be gone at the end.
        raise FileNotFoundError(errno.ENOENT, "was removed while the generation wrote to it", file.name)


def _tell(batch: list[Queued], failure: BaseException | None) -> None:
    """Tells those who wait, in one turn of their event loop."""

    def tell() -> None:
        for queued in batch:
            if queued.told.done():
                continue
            if failure is None:
                queued.told.set_result(None)
            else:
                queued.told.set_exception(failure)

    if batch:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            batch[0].loop.call_soon_threadsafe(tell)
