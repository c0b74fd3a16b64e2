"""How a run stands, from what it keeps in its folder and what its back end says."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reroll.api import JobState, RerollError
from reroll.checkpoints.store import FOLDER, MANIFEST, step_folders
from reroll.launch.attempts import Attempt, holder, read_attempts
from reroll.launch.folder import (
    LAUNCH,
    STOP,
    SUBMITTED,
    SUPERVISOR_LOCK,
    End,
    Receipt,
    read_end,
    read_receipts,
    was_submitted,
)
from reroll.launch.jobs import state_of
from reroll.plugins import PluginManager
from reroll.reporting.config import RUN_FILE
from reroll.reporting.trackers import METRICS

State = Literal[
    "pending",
    "starting",
    "running",
    "stopping",
    "restarting",
    "completed",
    "interrupted",
    "failed",
    "killed",
    "unknown",
]
ENDED = ("completed", "interrupted", "failed", "killed")
EVALUATED = {"name", "accuracy", "step"}
WAITS = ("trainer", "producer")
LARGEST = 1 << 63
LAST_BYTES = 1 << 18
"""Of the metrics: more than a collection's lines are long."""


@dataclass(frozen=True)
class Standing:
    """A run, now.

    Attributes:
        state: `pending` (submitted, not begun), `starting`, `running`, `stopping` (asked to
            end), `restarting` (between two starts); `completed`,
            `interrupted`, `failed` (by itself) and `killed` are ends; `unknown` where nothing tells.
        alive: a process of it uses the folder, or its job goes on; None where nobody can say.
        where: that process, and what the back end says of the job.
        message: why it ended, or is not started again.
        starts: of the run so far; `max_retries` bounds them, -1 is no bound.
        step: completed optimizer steps; None before the first.
        metrics: the last value of each, with the step of their line under `step`.
        waits: seconds in which trainer and generation waited for each other, in the last collection.
        evaluations: the last result of each evaluation set.
        checkpoint: the newest whole one.
    """

    run: str
    output: str
    state: State
    alive: bool | None
    backend: str | None
    where: str
    submitted: str | None
    message: str
    starts: int
    max_retries: int
    attempts: list[Attempt]
    step: int | None
    collections: int | None
    num_rollout: int | None
    metrics: Mapping[str, Any]
    waits: Mapping[str, float]
    evaluations: Mapping[str, Any]
    checkpoint: str | None
    faults: list[str] = field(default_factory=list)
    """What could not be read."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def standing_of(output: Path, plugins: PluginManager) -> Standing:
    """Reads the folder; RerollError where it is none of a run. A file that cannot be read is one of `faults`."""
    if not was_submitted(output):
        raise RerollError(f"{output} holds no run: give the folder of one, or its run file where that names output.dir")
    faults: list[str] = []

    def read(work: Any, default: Any) -> Any:
        try:
            return work()
        except (RerollError, OSError, ValueError) as error:
            faults.append(str(error))
            return default

    # The job first: one that ends while its folder is read has written all of it.
    receipts: list[Receipt] = read(lambda: read_receipts(output), [])
    job = state_of(receipts[-1], plugins) if receipts else None
    keeper = holder(output / LAUNCH, SUPERVISOR_LOCK)
    if keeper is not None and (job is None or job.state in ("ended", "unknown")):
        job = JobState("running", detail=f"supervisor: {keeper}")  # whatever the receipt knows of it
    user = holder(output)
    attempts: list[Attempt] = read(lambda: read_attempts(output), [])
    end: End | None = read(lambda: read_end(output), None)
    settings = read(lambda: _settings(output), {})
    summary = read(lambda: _table(output / "summary.json", json.loads), {})
    metrics = read(lambda: last_metrics(output), {})
    begun = len(attempts) > receipts[-1].starts_before if receipts else bool(attempts)
    asked = (output / LAUNCH / STOP).exists()
    state = _state(job, user, begun, asked, end, summary)
    checkpoints = [folder for folder in step_folders(output / FOLDER) if (folder / MANIFEST).exists()]
    return Standing(
        run=str(at(settings, "run", "name") or output.name),
        output=str(output),
        state=state,
        alive=_alive(job, user, state),
        backend=str(receipts[-1].backend.get("name")) if receipts else None,
        where=_where(job, user),
        submitted=receipts[-1].submitted if receipts else None,
        message=_message(state, job, end, summary),
        starts=len(attempts),
        max_retries=_whole(at(settings, "launch", "max_retries")) or -1,
        attempts=attempts,
        step=_whole(metrics.get("step")),
        collections=_whole(metrics.get("rollout/collections")),
        num_rollout=_whole(at(settings, "rollout", "num_rollout")),
        metrics=metrics,
        waits={name: metrics[key] for name in WAITS if is_number(metrics.get(key := f"wait/{name}_seconds"))},
        evaluations=_evaluations(at(summary, "eval", "all")),
        checkpoint=checkpoints[0].name if checkpoints else None,
        faults=faults,
    )


def _state(
    job: JobState | None, user: str | None, begun: bool, asked: bool, end: End | None, summary: Mapping[str, Any]
) -> State:
    told = summary.get("ended", "running") if begun else "running"
    if user is not None:
        return "stopping" if asked else "running" if begun else "starting"
    if job is not None and job.state == "pending":
        return "pending"
    if told in ("completed", "interrupted"):  # which no start follows
        return "completed" if told == "completed" else "interrupted"
    if job is not None and job.state == "running" and end is None:
        return "stopping" if asked else "restarting" if begun else "starting"
    if told == "failed":
        return "failed"
    if end is not None and end.exit_code is not None and end.exit_code > 0:
        return "failed"
    if job is not None and job.state == "unknown" and not begun:
        return "unknown"
    return "killed"


def _alive(job: JobState | None, user: str | None, state: State) -> bool | None:
    if user is not None or (job is not None and job.state in ("pending", "running")):
        return True
    return None if job is not None and job.state == "unknown" and state not in ENDED else False


def _message(state: State, job: JobState | None, end: End | None, summary: Mapping[str, Any]) -> str:
    parts = [str(summary.get("message") or "") if state in ("failed", "interrupted") else ""]
    if end is not None and state in ENDED:
        parts.append(end.message)
    if state == "unknown" and job is not None:
        parts.append(job.detail)
    return "; ".join(part for part in parts if part)


def _where(job: JobState | None, user: str | None) -> str:
    parts = [user or ""]
    if job is not None and job.state != "ended":
        parts.append(", ".join(part for part in (f"job {job.state}", job.where, job.detail) if part))
    return "; ".join(part for part in parts if part)


def _settings(output: Path) -> dict[str, Any]:
    """Of the last start; of the submission before there was one."""
    for path in (output / RUN_FILE, output / LAUNCH / SUBMITTED):
        if path.exists():
            return _table(path, tomllib.loads)
    return {}


def _table(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """ValueError names the file; one that is not there is an empty table."""
    if not path.exists():
        return {}
    try:
        found = parse(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no table")
    return found


def last_metrics(output: Path) -> dict[str, Any]:
    """The last value of every metric, from the end of `metrics.jsonl`; a line that is being written is left out."""
    path = output / METRICS
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LAST_BYTES))
        lines = file.read().split(b"\n")
    whole = lines[1:-1] if size > LAST_BYTES else lines[:-1]
    found: dict[str, Any] = {}
    for line in whole:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        if isinstance(read, dict):
            found |= read
    return found


def at(table: Any, *keys: str) -> Any:
    """What lies under the keys; None where there are no such tables."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def is_number(value: Any) -> bool:
    """One that can be shown: an integer of a damaged file may have more digits than a float can have."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


def _whole(value: Any) -> int | None:
    return int(value) if is_number(value) and math.isfinite(value) else None


def _evaluations(found: Any) -> dict[str, Any]:
    items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    whole = [item for item in items if set(item) >= EVALUATED and is_number(item["accuracy"])]
    return {item["name"]: item for item in whole if isinstance(item["name"], str)}
