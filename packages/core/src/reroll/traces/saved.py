"""Saved rollouts: `rollouts/step_N/train_rollouts.jsonl`, one trace a line, and the marker that a step is whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from reroll.api import Decision, Disposition, Group, RerollError
from reroll.config.atomic import naming, write_whole
from reroll.traces.lines import Line
from reroll.traces.names import FILE, MARKER, ROLLOUTS, UNUSED

SCHEMA = 1


class SavedGroup(NamedTuple):
    """A group to save, what the group filters decided about it, and how it left; None for an evaluation's."""

    group: Group
    decision: Decision
    disposition: Disposition | None = None


class SavedRolloutError(RerollError, ValueError):
    """A line is no saved rollout, or of a schema that this version does not read."""


def step_directory(output: Path, step: int) -> Path:
    """Folder of collection `step`, counted from 0."""
    return output / ROLLOUTS / f"step_{step}"


def save_groups(output: Path, step: int, groups: Iterable[SavedGroup]) -> int:
    """Writes the traces of a collection; gives their number."""
    return write_traces(step_directory(output, step) / FILE, groups)


def mark_complete(output: Path, step: int, count: int) -> None:
    """Says that the step's file is whole and holds `count` traces."""
    folder = step_directory(output, step)
    # After the file is closed: a reader that sees the marker may read every line.
    write_whole(folder / MARKER, json.dumps({"schema": SCHEMA, "traces": count}) + "\n")


def write_traces(path: Path, groups: Iterable[SavedGroup]) -> int:
    """Writes every trace of the groups, one a line, and syncs the file; gives their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with naming(path), path.open("w", encoding="utf-8") as file:
        for saved in groups:
            for index in range(len(saved.group.traces)):
                file.write(record_line(trace_record(saved, index)))
                count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def record_line(record: Mapping[str, Any]) -> str:
    """The record as one line of JSON. Metadata and messages may hold what JSON or UTF-8 cannot: numbers that are not
    finite become text, lone surrogates are escaped."""
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=_stand_in)
        line.encode()
    except ValueError:
        line = json.dumps(json.loads(json.dumps(record, default=_stand_in), parse_constant=str))
    return line + "\n"


def _stand_in(value: Any) -> Any:
    """For what JSON does not know: tables of any kind stay tables, the rest becomes text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def trace_record(saved: SavedGroup, index: int) -> dict[str, Any]:
    """One trace of a group as a saved line."""
    group, decision, disposition = saved
    trace = group.traces[index]
    stamp = {
        "kind": group.source,
        "env_name": group.env_name,
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
        "siblings": len(group.traces),
        "sibling": index,
        "reward": group.rewards[index],
        "seed": group.seeds[index],
        "verifier_weights": group.verifier_weights,
        "unknown_verifiers": group.unknown_verifiers,
        "prompt": _fields(group.rendered) if index == 0 else None,
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
    return (record for _, record in _records(folder / FILE))


def read_groups(folder: Path) -> list[SavedGroup]:
    """The groups of one whole step, as they were saved, by group index; SavedRolloutError where the step is not whole
    or a line is not what was written.

    What JSON does not know comes back as its stand-in: tuples as lists, other objects as text; numbers that are not
    finite stay numbers where a number is meant, and are text in messages, metadata and info.
    """
    marker, path = folder / MARKER, folder / FILE
    try:
        said = json.loads(marker.read_bytes())
        schema, count = said["schema"], said["traces"]
    except FileNotFoundError:
        raise SavedRolloutError(f"{marker} is missing: the step was not trained on to its end") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SavedRolloutError(f"{marker} cannot be read: {type(error).__name__}: {error}") from None
    if schema != SCHEMA:
        raise SavedRolloutError(f"{marker}: schema {schema!r}; this version reads {SCHEMA}")
    groups = read_traces(path)
    if (found := sum(len(saved.group.traces) for saved in groups)) != count:
        raise SavedRolloutError(f"{path} holds {found} traces, and {MARKER} says {count!r}")
    return groups


def read_traces(path: Path) -> list[SavedGroup]:
    """The groups of any file that `write_traces` wrote, by group index."""
    if not path.is_file():
        raise SavedRolloutError(f"{path} is missing")
    groups: dict[str, list[tuple[int, Line]]] = {}
    for number, record in _records(path):
        try:
            line = Line(record)
        except ValueError as error:
            raise SavedRolloutError(f"{path}:{number}: {error}") from None
        groups.setdefault(line.stamp.group_id, []).append((number, line))
    found = [_group(path, lines) for lines in groups.values()]
    return sorted(found, key=lambda saved: saved.group.group_index)


def _group(path: Path, numbered: list[tuple[int, Line]]) -> SavedGroup:
    numbered = sorted(numbered, key=lambda item: item[1].stamp.sibling)
    (where, first), lines = numbered[0], [line for _, line in numbered]
    stamp = first.stamp
    for number, line in numbered:
        if field := line.difference(first):
            values = getattr(line.stamp, field), getattr(stamp, field)
            raise SavedRolloutError(
                f"{path}:{number}: info.reroll.{field}: {values[0]!r}, but its group has {values[1]!r} in line {where}"
            )
    siblings = [line.stamp.sibling for line in lines]
    if siblings != list(range(stamp.siblings)):
        raise SavedRolloutError(
            f"{path}:{where}: info.reroll.sibling: group {stamp.group_index} has the siblings {siblings}, "
            f"and {stamp.siblings} were saved"
        )
    if stamp.prompt is None:
        raise SavedRolloutError(f"{path}:{where}: info.reroll.prompt: is missing; the first sibling has it")
    task = first.task()
    group = Group(
        observation_id=stamp.group_id,
        group_index=stamp.group_index,
        attempt=stamp.group_attempt,
        rollout_id=stamp.rollout_id,
        task=task,
        rendered=stamp.prompt.rendered(),
        traces=[line.trace(task) for line in lines],
        seeds=[line.stamp.seed for line in lines],
        verifier_weights=stamp.verifier_weights,
        rewards=[line.stamp.reward for line in lines],
        source=stamp.kind,
        env_name=stamp.env_name,
    )
    return SavedGroup(group, first.decision(), stamp.disposition)


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line numbers and lines of a file of saved rollouts."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                fault = f"is no JSON: {error}" if line.endswith(b"\n") else "is torn: the file ends within it"
                raise SavedRolloutError(f"{path}:{number}: the line {fault}") from None
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                found = record.get("schema") if isinstance(record, dict) else type(record).__name__
                raise SavedRolloutError(f"{path}:{number}: schema {found!r}; this version reads {SCHEMA}")
            yield number, record


def is_complete(folder: Path) -> bool:
    """Whether the step's marker exists."""
    return (folder / MARKER).exists()


def move_aside(output: Path, collection: int, version: int, attempt: int) -> list[Path]:
    """Takes what lies beyond a checkpoint out of the way of the attempt that goes on from it: collections from
    `collection` on, the unused groups, and evaluations after step `version`. They go to
    `superseded/attempt_<attempt>` in the same folder. Gives where they are now.

    Everything is renamed and nothing written over, so that one call may finish what another one began.
    """
    moved = _move_beyond(output / ROLLOUTS, collection, attempt)
    evaluations = output / "eval"
    for folder in sorted(evaluations.iterdir()) if evaluations.is_dir() else []:
        if folder.is_dir():
            moved += _move_beyond(folder, version + 1, attempt)
    return moved


def _move_beyond(parent: Path, first: int, attempt: int) -> list[Path]:
    """The folders `step_N` with N from `first` on, and the unused groups."""
    moved: list[Path] = []
    for path in sorted(parent.iterdir() if parent.is_dir() else [], key=lambda path: (len(path.name), path.name)):
        step = re.fullmatch(r"step_(0|[1-9][0-9]*)", path.name)
        if path.name == UNUSED or (step and int(step[1]) >= first):
            folder = parent / "superseded" / f"attempt_{attempt}"
            folder.mkdir(parents=True, exist_ok=True)
            target, number = folder / path.name, 1
            while target.exists():
                number += 1
                target = folder / f"{path.stem}-{number}{path.suffix}"
            path.rename(target)
            moved.append(target)
    return moved
