"""Metrics: the built-in sink, and the fan-out that keeps a failing one away from training."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from reroll.api import Decision, Group, RunContext, Tracker
from reroll.config.atomic import naming
from reroll.reporting.generations import chosen, shown
from reroll.reporting.kept import COLLECTIONS, keep_lines

logger = logging.getLogger("reroll")
METRICS = "metrics.jsonl"
GENERATIONS = "generations.jsonl"
"""Beside each, `<name>.superseded.jsonl` has the lines of earlier starts beyond the checkpoint that a later one began
at."""


class JsonlTracker(Tracker):
    """One JSON object a line: `step`, `time` (seconds since the epoch) and the metrics."""

    name = "jsonl"
    shows_groups = True
    _file: TextIO | None = None
    _generations: Path

    def open(self, context: RunContext) -> None:
        path, self._generations = context.output / METRICS, context.output / GENERATIONS
        for each in (path, self._generations):
            keep_lines(each, context)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        assert self._file is not None, "open() comes first"
        with naming(Path(self._file.name)):
            self._file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\n")
            self._file.flush()

    def log_groups(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """One group a line."""
        with naming(self._generations), self._generations.open("a", encoding="utf-8") as file:
            for group in groups:
                done = group["collection"] + 1
                file.write(json.dumps({"step": step, COLLECTIONS: done, **group}) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Trackers:
    """All selected sinks. One that fails is told once and left out from then on.

    Args:
        sample_rate: share of the groups whose conversations are given to the sinks that show them.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        warn: Callable[[str], None] = lambda text: None,
        sample_rate: float = 0.0,
    ) -> None:
        self._trackers = list(trackers)
        self._warn = warn
        self._sample_rate = sample_rate
        self._seed = 0

    def open(self, context: RunContext) -> None:
        self._seed = context.seeds.run
        self._tell(lambda tracker: tracker.open(context))

    def log(self, step: int, metrics: Mapping[str, float | str]) -> None:
        self._tell(lambda tracker: tracker.log(step, metrics))

    def log_groups(self, step: int, collection: int, decided: Sequence[tuple[Group, Decision]]) -> None:
        """The share of conversations of a collection, which has the number `collection`."""
        if not self._sample_rate or not any(tracker.shows_groups for tracker in self._trackers):
            return
        try:
            groups = [
                shown(group, decision.outcome, collection)
                for group, decision in decided
                if chosen(group, collection, seed=self._seed, rate=self._sample_rate)
            ]
        except Exception as error:  # what plugins put into verdicts and messages may be anything
            logger.exception("conversations of collection %s cannot be shown", collection)
            self._warn(f"no conversations are given to trackers any more: {type(error).__name__}: {error}")
            self._sample_rate = 0.0
            return
        if not groups:
            return
        self._tell(lambda tracker: tracker.log_groups(step, groups) if tracker.shows_groups else None)

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
