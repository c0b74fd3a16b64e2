"""When each sibling of a group began and ended: for finding out what a batch waits for."""

from __future__ import annotations

import json
from typing import TextIO

from reroll.api import Decision, Disposition, Group, RecordWriter, RunContext, RunFile
from reroll.rollouts.config import RolloutSection

SCHEMA = 1


class SiblingTiming(RecordWriter):
    """One JSON object a scored group: `schema, observation_id, group_index, group_attempt, rollout_id, siblings`; each
    sibling has `start`, `first_token` and `end` in seconds since the epoch, null where it did not come so far, and
    its number of `tokens`."""

    name = "sibling_timing"
    _file: TextIO | None = None

    @classmethod
    def from_run(cls, run: RunFile) -> SiblingTiming | None:
        return cls() if run.get(RolloutSection).observe_sibling_timing else None

    def open(self, context: RunContext) -> None:
        path = context.output / f"sibling_timing_{context.attempt}.jsonl"
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def group_scored(self, observation_id: str, group: Group, decision: Decision) -> None:
        assert self._file is not None, "open() comes first"
        siblings = [
            {name: trace.timing.get(name) for name in ("start", "first_token", "end")}
            | {"tokens": trace.response_tokens}
            for trace in group.traces
        ]
        row = {
            "schema": SCHEMA,
            "observation_id": observation_id,
            "group_index": group.group_index,
            "group_attempt": group.attempt,
            "rollout_id": group.rollout_id,
            "siblings": siblings,
        }
        self._file.write(json.dumps(row) + "\n")

    def group_left(self, observation_id: str, disposition: Disposition, staleness: int) -> None:
        return

    def close(self, timeout: float) -> None:
        if self._file is not None:
            self._file.close()
