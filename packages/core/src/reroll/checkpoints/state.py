"""What the controller saves in a checkpoint, and whether a run that would go on from it is the same run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from reroll.api import CheckpointError, TaskSet
from reroll.config.atomic import write_whole
from reroll.config.problems import shown
from reroll.models.files import ModelFiles, sampled_sha256
from reroll.traces.checked import Checked, Table, Text, read_checked

SCHEMA = 1
FILE = "controller.json"
FREE_SECTIONS = {"output", "launch", "checkpoint", "trackers"}
"""Sections that say where and how a run is kept, and nothing of what it computes."""

Count = Annotated[int, Field(ge=0)]


class Identity(Checked):
    """What makes a run the run that it is.

    Attributes:
        seeds: as in `Seeds`.
        data: `data_identity`'s; model: `model_identity`'s.
    """

    run_id: Text
    seeds: dict[str, int]
    data: Table
    model: Table


class RunState(Checked):
    """The controller's part of a checkpoint.

    Attributes:
        version: completed optimizer steps; engine_version: the weights that engines serve.
        collection: the next one.
        attempt: id of the process start that saved this.
        settings: the resolved run file.
        cursor, events: their `state()`; summary, evaluations: as the session keeps them.
    """

    version: Count
    engine_version: Count
    collection: Count
    attempt: Text
    identity: Identity
    settings: Table
    cursor: Table
    events: Table
    summary: Table
    evaluations: Table

    def write(self, folder: Path) -> Path:
        """Writes the file into a checkpoint's folder."""
        path = folder / FILE
        write_whole(path, json.dumps({"schema": SCHEMA, **self.model_dump()}) + "\n")
        return path


def read_state(folder: Path) -> RunState:
    """The controller's part of a checkpoint; CheckpointError names the file and the field."""
    try:
        return read_checked(RunState, folder / FILE, SCHEMA)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}; use another checkpoint") from None


def data_identity(settings: Mapping[str, Any], task_sets: Mapping[str, TaskSet]) -> dict[str, Any]:
    """What the training tasks and their order follow from.

    Args:
        settings: the resolved run file.
        task_sets: those that it selects, by the names of their data sources.
    """
    data = settings["data"]
    found = {name: _fingerprint(task_set) for name, task_set in task_sets.items()}
    if not data.get("sources"):
        return {"task_set": data["task_set"], "shuffle": data["shuffle"], "fingerprint": next(iter(found.values()))}
    sources = {
        source["name"]: {
            "task_set": source["task_set"],
            "ratio": source.get("ratio"),
            "fingerprint": found[source["name"]],
        }
        for source in data["sources"]
    }
    return {"sources": sources, "shuffle": data["shuffle"], "fingerprint": None}


def _fingerprint(task_set: TaskSet) -> str | None:
    """None for what is known by its settings alone: a stream, and what grows while runs go on."""
    try:
        len(task_set)
    except TypeError:
        return None
    return None if task_set.online else task_set.fingerprint()


def model_identity(files: ModelFiles) -> dict[str, dict[str, Any]]:
    """File name → size and digest, of JSON files the whole one and of others a sampled one. When a file was written
    says nothing of what is in it."""
    found: dict[str, dict[str, Any]] = {}
    for name, facts in files.inventory().items():
        if name.startswith(".") or name.lower().endswith(".md"):
            continue  # notes about the model are no part of it
        digest = facts.get("sha256") or sampled_sha256(files.directory / name)
        found[name] = {"size": facts["size"], "sha256": digest}
    return found


def identity_problems(saved: Identity, now: Identity) -> list[str]:
    """Differences for which a run cannot go on from the checkpoint: another seed, other data, another model."""
    fingerprints = saved.data.get("fingerprint"), now.data.get("fingerprint")
    same_tasks = fingerprints[0] is not None and fingerprints[0] == fingerprints[1]
    problems = [
        f"{key}: {_shown(key, before)} in the checkpoint, {_shown(key, after)} now"
        for name in ("seeds", "data", "model")
        for key, before, after in differences(name, getattr(saved, name), getattr(now, name))
        if not (same_tasks and key.startswith("data.task_set") and moved(before, after))
    ]
    return problems


def model_differences(saved: Identity, files: ModelFiles) -> list[str]:
    """What is not as it was in the model that a run began with."""
    found = differences("model", saved.model, model_identity(files))
    return [f"{key}: {_shown(key, before)} then, {_shown(key, after)} now" for key, before, after in found]


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that differ between two resolved run files, as `section.key: before → after`."""
    return [
        f"{key}: {_shown(key, before)} → {_shown(key, after)}"
        for section in sorted({*saved, *now} - FREE_SECTIONS)
        for key, before, after in differences(section, saved.get(section, {}), now.get(section, {}))
    ]


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


def differences(key: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Dotted key and both values of everything that differs."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from differences(f"{key}.{name}" if key else name, before.get(name, UNSET), after.get(name, UNSET))
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield key, before, after


def _shown(key: str, value: Any) -> str:
    return "unset" if value is UNSET else shown(key, value)


def moved(before: Any, after: Any) -> bool:
    """Whether two values are paths of one file in two folders; tasks are named after the file, not its folder."""
    if not (isinstance(before, str) and isinstance(after, str)):
        return False
    return Path(before).is_absolute() and Path(after).is_absolute() and Path(before).name == Path(after).name
