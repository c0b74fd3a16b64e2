"""What `reroll run` keeps in a run's folder, under `launch/`: read by whoever follows the run, from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reroll.api import RerollError
from reroll.config.atomic import write_whole
from reroll.launch.attempts import FILE as ATTEMPTS

LAUNCH = "launch"
LOG = "output.log"
"""All that the run and its supervisor say."""
SUBMITTED = "run.toml"
"""What is started: the run file as it resolved, with `--set` and the folder in it."""
RECEIPTS = "receipts.json"
STOP = "stop"
"""There while the run is asked to end."""
END = "end.json"
SUPERVISOR_LOCK = "supervisor.lock"
"""Held by the process that starts the run, and starts it again."""
SCHEMA = 1
KINDS: dict[str, Any] = {
    "backend": dict,
    "submitted": str,
    "host": str,
    "user": str,
    "starts_before": int,
    "handle": dict | None,
    "exit_code": int | None,
    "message": str,
}


def was_started(output: Path) -> bool:
    """Whether a run has begun in the folder. The lock alone says nothing: who holds it is only about to."""
    return any((output / name).exists() for name in (ATTEMPTS, "context.json"))


def was_submitted(output: Path) -> bool:
    """Whether a run has begun in the folder, or was handed to a launcher that has it wait."""
    return was_started(output) or (output / LAUNCH / RECEIPTS).exists()


class LaunchError(RerollError):
    """What `reroll run` left in a run's folder cannot be used, or its job cannot be."""


@dataclass(frozen=True)
class Receipt:
    """One submission.

    Attributes:
        backend: the launcher, as a run file selects it: its name and every option.
        submitted: UTC, ISO 8601; `host` and `user` say where and by whom.
        starts_before: starts of the run at that time.
        handle: by which the launcher finds the job; None where submitting was broken off.
    """

    backend: dict[str, Any]
    submitted: str
    host: str
    user: str
    starts_before: int
    handle: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class End:
    """How the supervisor left the run.

    Attributes:
        exit_code: of the run's last start, -N where signal N killed it; None where it was not started at all.
        message: why it is not started again; empty where it came to its end.
    """

    exit_code: int | None
    message: str


def read_receipts(output: Path) -> list[Receipt]:
    """All submissions, oldest first; empty for a run that no `reroll run` started. LaunchError for a file that is no
    list of them."""
    path = output / LAUNCH / RECEIPTS
    found = _read(path)
    if found is None:
        return []
    try:
        if found["schema"] != SCHEMA:
            raise ValueError(f"its schema is {found['schema']!r}, this reroll reads {SCHEMA}")
        return [_made(Receipt, item) for item in found["receipts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def write_receipts(output: Path, receipts: list[Receipt]) -> None:
    table = {"schema": SCHEMA, "receipts": [asdict(item) for item in receipts]}
    write_whole(output / LAUNCH / RECEIPTS, json.dumps(table, indent=2) + "\n")


def write_end(output: Path, end: End) -> None:
    write_whole(output / LAUNCH / END, json.dumps({"schema": SCHEMA, **asdict(end)}) + "\n")


def read_end(output: Path) -> End | None:
    """None while the supervisor has not come to its end, or was killed."""
    path = output / LAUNCH / END
    found = _read(path)
    if found is None:
        return None
    try:
        if not isinstance(found, dict) or found.pop("schema", None) != SCHEMA:
            raise ValueError(f"it holds {str(found)[:80]}")
        made: End = _made(End, found)
        return made
    except (ValueError, TypeError) as error:
        raise LaunchError(f"{path} cannot be read: {error}") from None


def _made(kind: Any, item: Any) -> Any:
    if not isinstance(item, dict) or set(item) != {field.name for field in fields(kind)}:
        raise ValueError(f"{str(item)[:80]} is no {kind.__name__.lower()}")
    for name, wanted in KINDS.items():
        if name in item and (not isinstance(item[name], wanted) or isinstance(item[name], bool)):
            raise ValueError(f"{name} = {str(item[name])[:80]!r}")
    return kind(**item)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"{path} cannot be read: {error}") from None
