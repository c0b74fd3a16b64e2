"""Saved rollouts: `rollouts/step_N/train_rollouts.jsonl`, one trace a line, and the marker that a step is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from reroll.api import Decision, Disposition, Group, RerollError

SCHEMA = 1
FILE = "train_rollouts.jsonl"
MARKER = "train_rollouts.done"


class SavedGroup(NamedTuple):
    """A group to save, what the group filters decided about it, and how it left; None for an evaluation's."""

    group: Group
    decision: Decision
    disposition: Disposition | None = None


class SavedRolloutError(RerollError, ValueError):
    """A line is no saved rollout, or of a schema that this version does not read."""


def step_directory(output: Path, step: int) -> Path:
    """Folder of collection `step`, counted from 0."""
    return output / "rollouts" / f"step_{step}"


def save_groups(output: Path, step: int, groups: Iterable[SavedGroup]) -> int:
    """Writes the traces of a collection; gives their number."""
    return write_traces(step_directory(output, step) / FILE, groups)


def mark_complete(output: Path, step: int, count: int) -> None:
    """Says that the step's file is whole and holds `count` traces."""
    folder = step_directory(output, step)
    # The marker appears whole, after the file is closed: a reader that sees it may read every line.
    partial = folder / (MARKER + ".partial")
    partial.write_text(json.dumps({"schema": SCHEMA, "traces": count}) + "\n", "utf-8")
    partial.rename(folder / MARKER)


def write_traces(path: Path, groups: Iterable[SavedGroup]) -> int:
    """Writes every trace of the groups, one a line, and syncs the file; gives their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for saved in groups:
            for index in range(len(saved.group.traces)):
                file.write(_line(trace_record(saved, index)))
                count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def _line(record: dict[str, Any]) -> str:
    """The record as one line of JSON. Metadata and messages may hold what JSON or UTF-8 cannot: numbers that are not
    finite become text, lone surrogates are escaped."""
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)
        line.encode()
    except ValueError:
        line = json.dumps(json.loads(json.dumps(record, default=str), parse_constant=str))
    return line + "\n"


def trace_record(saved: SavedGroup, index: int) -> dict[str, Any]:
    """One trace of a group as a saved line."""
    group, decision, disposition = saved
    trace = group.traces[index]
    stamp = {
        "kind": group.source,
        "env_name": group.task.source_dataset,
        "group_id": group.observation_id,
        "policy_version": max(trace.weight_versions, default=None),
        "weight_versions": trace.weight_versions,
        "is_filtered": decision.outcome != "passed",
        "filter_decision": decision.outcome,
        "filter_reason": decision.reason,
        "disposition": disposition,
        "group_index": group.group_index,
        "group_attempt": group.attempt,
        "rollout_id": group.rollout_id,
        "sibling": index,
        "reward": group.rewards[index],
        "seed": group.seeds[index],
        "verdicts": {name: _fields(verdict) for name, verdict in trace.verdicts.items()},
    }
    return {
        "schema": SCHEMA,
        "id": trace.id,
        "task": _fields(group.task),
        "nodes": [_fields(node) for node in trace.nodes],
        "rewards": trace.rewards,
        "metrics": trace.metrics,
        "info": {**trace.info, "reroll": stamp},
        "is_completed": trace.is_completed,
        "stop_condition": trace.stop_condition,
        "errors": trace.errors,
        "timing": trace.timing,
    }


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass as a mapping, its values as they are: copying every token would cost more than writing it."""
    return {item.name: getattr(value, item.name) for item in fields(value)}


def read_rollouts(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The saved lines of one step; SavedRolloutError names file and line of one that cannot be read."""
    path = folder / FILE
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SavedRolloutError(f"{path}:{number}: the line is no JSON: {error}") from None
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                found = record.get("schema") if isinstance(record, dict) else type(record).__name__
                raise SavedRolloutError(f"{path}:{number}: schema {found!r}; this version reads {SCHEMA}")
            yield record


def is_complete(folder: Path) -> bool:
    """Whether the step's marker exists."""
    return (folder / MARKER).exists()
