"""Metrics: the built-in sink, and the fan-out that keeps a failing one away from training."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from reroll.api import RunContext, Tracker
from reroll.config.atomic import naming, write_whole

logger = logging.getLogger("reroll")
METRICS = "metrics.jsonl"
SUPERSEDED = "metrics.superseded.jsonl"
"""Lines of earlier starts beyond the checkpoint that a later one began at."""


class JsonlTracker(Tracker):
    """One JSON object a line: `step`, `time` (seconds since the epoch) and the metrics."""

    name = "jsonl"
    _file: TextIO | None = None

    def open(self, context: RunContext) -> None:
        path = context.output / METRICS
        if path.exists():
            _keep_until(path, *((-1, 0) if context.fresh else (context.start_version, context.start_rollout_id)))
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        assert self._file is not None, "open() comes first"
        with naming(Path(self._file.name)):
            self._file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _keep_until(path: Path, step: int, collections: int) -> None:
    """An earlier start of the run went on beyond the step and the collections that this one begins after: those lines,
    and a torn last one, are moved to a file of their own."""
    kept: list[str] = []
    later: list[str] = []
    for line in path.read_text("utf-8", errors="replace").splitlines(keepends=True):
        try:
            found = json.loads(line)
            belongs = found["step"] <= step and found.get("rollout/collections", 0) <= collections
            belongs = belongs and line.endswith("\n")
        except (ValueError, KeyError, TypeError):
            belongs = False
        (kept if belongs else later).append(line)
    if not later:
        return
    with path.with_name(SUPERSEDED).open("a", encoding="utf-8") as file:
        file.writelines(later)
    write_whole(path, "".join(kept))


class Trackers:
    """All selected sinks. One that fails is told once and left out from then on."""

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None] = lambda text: None) -> None:
        self._trackers = list(trackers)
        self._warn = warn

    def open(self, context: RunContext) -> None:
        self._tell(lambda tracker: tracker.open(context))

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        self._tell(lambda tracker: tracker.log(step, metrics))

    def close(self) -> None:
        self._tell(lambda tracker: tracker.close())

    def _tell(self, event: Callable[[Tracker], Any]) -> None:
        for tracker in list(self._trackers):
            try:
                event(tracker)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                logger.exception("tracker %r failed and gets no further metrics", tracker.name)
                self._warn(f"tracker {tracker.name!r} gets no further metrics: {type(error).__name__}: {error}")
                self._trackers.remove(tracker)
