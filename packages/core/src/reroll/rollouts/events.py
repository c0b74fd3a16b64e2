"""The one place through which everything that happens to a group goes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from reroll.api import Decision, Disposition, Group, RecordWriter, RunContext, RunFile
from reroll.tasks.ledger import Ledger

logger = logging.getLogger("reroll")


class GroupEvents:
    """Keeps the ledger and tells record writers. A writer that fails is logged once and left alone after that:
    recording never touches training."""

    def __init__(self, writers: Sequence[type[RecordWriter]], run: RunFile) -> None:
        self.ledger = Ledger()
        self.filtered: Counter[str] = Counter()
        self._writers: list[RecordWriter] = []
        for cls in writers:
            try:
                writer = cls.from_run(run)
            except (Exception, SystemExit):
                logger.exception("record writer %r could not be made and records nothing", cls.name)
            else:
                self._writers += [writer] if writer is not None else []

    def open(self, context: RunContext) -> None:
        self._tell(lambda writer: writer.open(context))

    def dispatched(self, group_index: int, task_key: str) -> None:
        self.ledger.dispatch(group_index, task_key)

    def scored(self, group: Group, decision: Decision) -> None:
        """Recorded before the decision is applied."""
        if decision.outcome != "passed":
            self.filtered[decision.reason] += 1
        self._tell(lambda writer: writer.group_scored(group.observation_id, group, decision))

    def left(self, group: Group, disposition: Disposition, staleness: int = 0) -> None:
        self.ledger.end(group.group_index, disposition)
        self._tell(lambda writer: writer.group_left(group.observation_id, disposition, staleness))

    def metrics(self) -> dict[str, float]:
        """What the writers report."""
        found: dict[str, float] = {}
        self._tell(lambda writer: found.update(writer.metrics()))
        return found

    def close(self, timeout: float = 30.0) -> None:
        self._tell(lambda writer: writer.close(timeout))

    def _tell(self, event: Callable[[RecordWriter], Any]) -> None:
        for writer in list(self._writers):
            try:
                event(writer)
            except (Exception, SystemExit):
                logger.exception("record writer %r failed and records nothing further", writer.name)
                self._writers.remove(writer)
