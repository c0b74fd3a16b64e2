"""The writer: a bounded queue between the run and the store, which drops rather than blocks."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from reroll.api import Decision, Disposition, Group, RecordWriter, RerollError, RunContext, RunFile
from reroll.config.atomic import write_whole
from reroll_records.store.appending import Appender, AppendError
from reroll_records.store.layout import CLOSED, MANIFEST, RECORDS
from reroll_records.store.liveness import hold
from reroll_records.store.rows import SCHEMA, DispositionRow
from reroll_records.writing.config import RecordsSection
from reroll_records.writing.recording import GENERATE, RowMaker, encode, make_manifest

QUEUE_ROWS = 4096
"""Rows that wait to be written; more are dropped."""
PAUSE = 0.2
"""Seconds for which rows gather before they are written together: a thread that woke for every row would take the
interpreter from the run each time."""
BATCH_ROWS = 256
"""Most rows of one write."""

logger = logging.getLogger("reroll")


class Line(NamedTuple):
    """A row without its newline, and the group that it is about."""

    observation_id: str
    text: bytes
    opens: bool
    """Whether it is the group's row, and not its disposition."""


class StoreWriter(RecordWriter):
    """Writes group and disposition rows of one attempt.

    Lines are made where the group is scored, and appended by a thread. What cannot be written is counted, and told once
    in the log when it begins and once at the end.
    """

    name = "records"
    metrics_logged = {
        "rollout/records/queued_total": ("records", "handed to the writer by this start"),
        "rollout/records/written_total": ("records", "written by it"),
        "rollout/records/dropped_total": ("records", "dropped because the writer was behind"),
        "rollout/records/failed_total": ("records", "that could not be written"),
        "rollout/records/pending": ("records", "waiting to be written"),
    }

    def __init__(self, settings: RecordsSection) -> None:
        super().__init__()
        self.settings = settings
        self.queued = self.written = self.dropped = self.unmade = self.unwritten = 0
        self._queue: SimpleQueue[Line | None] = SimpleQueue()
        self._lost: set[str] = set()
        """Observation ids of groups that could not be written; what became of them is not written either."""
        self._passed: set[str] = set()
        """Observation ids of queued groups that passed the filter and have not left."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    @classmethod
    def from_run(cls, run: RunFile) -> StoreWriter | None:
        section = run.get(RecordsSection)
        return cls(section) if section.enabled else None

    def open(self, context: RunContext) -> None:
        """Reads lineage and protocol, once, and begins the attempt's files; raises what keeps it from that."""
        root, section = self.settings.root, self.settings
        assert root is not None, "a run file without it is refused"
        settings = {
            "responses": section.responses,
            "response_sample_rate": section.response_sample_rate,
            "queue_rows": QUEUE_ROWS,
        }
        manifest = make_manifest(context, settings)
        try:
            self._begin(root, context, manifest)
        except OSError as error:
            reason = error.strerror or error
            raise RerollError(
                f"records.root = {str(root)!r} cannot be written to ({error.filename or root}: {reason}); give a "
                "folder that can, or set records.enabled = false"
            ) from error

    def _begin(self, root: Path, context: RunContext, manifest: Mapping[str, Any]) -> None:
        self._rows = RowMaker(
            protocol_digest=manifest["protocol_digest"],
            rollout_seed=context.seeds.rollout,
            sample_rate=self.settings.text_rate,
            fresh=context.fresh,
            frozen=context.source == GENERATE,
        )
        folder = root / manifest["lineage"]["id"] / f"{context.name}-{context.run_id}"
        folder.mkdir(parents=True, exist_ok=True)
        manifest_path = folder / MANIFEST.format(context.attempt)
        self._closed_path = folder / CLOSED.format(context.attempt)
        # The manifest first: a record file without one would be warned about for ever.
        write_whole(manifest_path, json.dumps(manifest, indent=2) + "\n")
        self._alive = hold(manifest_path)
        try:
            self._appender = Appender.open(folder / RECORDS.format(context.attempt))
        except BaseException:
            self._alive.close()
            raise
        # A daemon, so that a store that hangs cannot keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="reroll-records", daemon=True)
        self._thread.start()

    def group_scored(self, observation_id: str, group: Group, decision: Decision) -> None:
        if self._full():
            return
        try:
            line = self._rows.line(observation_id, group, decision)
        except Exception as error:  # a task is anybody's: one that has no row costs no other
            self.queued += 1
            self._tell_loss(error)
            self.unmade += 1
            return
        self._put(Line(observation_id, line, opens=True))
        if decision.outcome == "passed":
            self._passed.add(observation_id)

    def group_left(self, observation_id: str, disposition: Disposition, staleness: int) -> None:
        """Of groups that passed and left for training, or because they were too old. One that is `returned` was still
        queued, which is what a group without such a row was."""
        if observation_id not in self._passed:
            return
        self._passed.discard(observation_id)
        if disposition in ("consumed", "expired") and not self._full():
            row = DispositionRow(observation_id, disposition, staleness, time.time())
            self._put(Line(observation_id, encode(row.to_json()), opens=False))

    def metrics(self) -> Mapping[str, float]:
        return {
            "rollout/records/queued_total": self.queued,
            "rollout/records/written_total": self.written,
            "rollout/records/dropped_total": self.dropped,
            "rollout/records/failed_total": self.failed,
            "rollout/records/pending": self.pending,
        }

    @property
    def failed(self) -> int:
        """Rows that could not be made, in the event loop, or not be written, in the thread."""
        return self.unmade + self.unwritten

    @property
    def pending(self) -> int:
        """Rows that are queued and neither written nor lost."""
        return self.queued - self.written - self.failed

    def close(self, timeout: float) -> None:
        if self._thread is None:
            return
        self._ending.set()
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.error("records: %d rows were not written within %g s and are lost", self.pending, timeout)
            return
        self._alive.close()
        if lost := self.dropped + self.failed:
            logger.error("records: %d rows are lost: %d dropped, %d failed", lost, self.dropped, self.failed)

    def closing_line(self) -> str:
        if self._thread is None:
            return ""
        lost = self.dropped + self.failed + self.pending
        return f"records:  {self.written:,} rows in {self._closed_path.parent}" + (f", {lost:,} lost" if lost else "")

    def _full(self) -> bool:
        """Whether there is no room for a row, which is then dropped."""
        full = self._queue.qsize() >= QUEUE_ROWS
        self.dropped += full
        return full

    def _put(self, line: Line) -> None:
        self.queued += 1
        self._queue.put(line)

    def _work(self) -> None:
        batch: list[Line | None] = []
        while None not in batch:
            full = len(batch) == BATCH_ROWS
            batch = [self._queue.get()]
            if not full:
                self._ending.wait(PAUSE)
            while None not in batch[-1:] and len(batch) < BATCH_ROWS and not self._queue.empty():
                batch.append(self._queue.get())
            self._write([line for line in batch if line is not None])
        self._end()

    def _write(self, batch: list[Line]) -> None:
        lines = [line for line in batch if line.opens or line.observation_id not in self._lost]
        whole = 0
        try:
            self._appender.append([line.text for line in lines])
            whole = len(lines)
        except Exception as error:  # nothing may end the thread: what follows would be lost and not counted
            whole = error.whole if isinstance(error, AppendError) else 0
            self._tell_loss(error)
        self._lost |= {line.observation_id for line in lines[whole:] if line.opens}
        self._lost -= {line.observation_id for line in batch if not line.opens}
        self.written += whole
        self.unwritten += len(batch) - whole

    def _tell_loss(self, error: Exception) -> None:
        if not self.failed:
            logger.error("records: rows are being lost, and counted: %s", error)

    def _end(self) -> None:
        counts: dict[str, Any] = {"written": self.written, "dropped": self.dropped, "failed": self.failed}
        try:
            self._appender.close()
            write_whole(
                self._closed_path,
                json.dumps({"kind": "closed", "schema": SCHEMA, **counts, "ended": time.time()}) + "\n",
            )
        except Exception as error:
            logger.error("records: the store could not be closed: %s", error)
