"""The filter that skips what a pinned selection table excludes."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from reroll.api import PromptFilter, RenderedPrompt, RerollError, RunContext, RunFile, Task
from reroll_records.selection.config import SelectionSection
from reroll_records.selection.tables import Table, TableError, load_table
from reroll_records.store.identity import digest, identify, lineage, protocol_record

LIMITS = (
    "selection.table skips prompts on recorded evidence. That it was judged as it would be now is checked for sampling "
    "settings, templates, and names, versions, weights and options of verifiers; changes of a verifier's code within "
    "one version, or of a service or model that it asks, are not seen"
)

logger = logging.getLogger("reroll")


class SelectionFilter(PromptFilter):
    """Skips excluded prompts, known by the same keys as in the records. Switched on by `[selection]`."""

    name = "selection"
    _table: Table
    _protocol_digest: str

    def __init__(self, path: Path | None = None, pinned: str = "") -> None:
        super().__init__()
        self._skips: Counter[str] = Counter()
        self._path = path
        self._pinned = pinned

    @classmethod
    def from_run(cls, run: RunFile) -> SelectionFilter | None:
        section = run.get(SelectionSection)
        if section.table is None or section.sha256 is None:
            return None
        return cls(section.table, section.sha256)

    def prepare(self) -> None:
        assert self._path is not None, "a run file that lists the filter is refused"
        try:
            self._table = load_table(self._path, self._pinned)
        except TableError as error:
            raise RerollError(f"selection.table: {error}") from None
        self.fingerprint = self._table.sha256

    def open(self, context: RunContext) -> None:
        """RerollError if the table's evidence is of another starting checkpoint or protocol."""
        protocol = protocol_record(context.protocol)
        try:
            self._table.check_run(lineage(context), protocol)
        except TableError as error:
            raise RerollError(str(error)) from None
        self._protocol_digest = digest(protocol)
        self.warn(LIMITS)
        if self._table.content["approximate_policy"]:
            self.warn(
                "selection.table rests on responses of later weight versions too (approximate_policy): these belong to "
                "the trajectories of other runs"
            )

    def skip(self, task: Task, rendered: RenderedPrompt) -> str | None:
        try:
            input_key = identify(task, rendered, self._protocol_digest).input_key
        except ValueError:
            return None  # a task that has no identity was never recorded, so that no table can hold it
        reason = self._table.excluded.get(input_key)
        if reason is not None:
            self._log(reason)
        return reason

    def _log(self, reason: str) -> None:
        """Skips by rule and domain, whenever there are twice as many: one line each would fill the log."""
        self._skips[reason] += 1
        if self._skips[reason].bit_count() == 1:
            logger.info("selection: %d prompts skipped so far: %s", self._skips[reason], reason)
