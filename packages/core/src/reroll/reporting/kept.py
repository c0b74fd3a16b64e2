"""Lines of a start that went on beyond the checkpoint that a later one begins at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reroll.api import RunContext
from reroll.config.atomic import write_whole

COLLECTIONS = "rollout/collections"


def belongs(step: int, metrics: Mapping[str, Any], context: RunContext) -> bool:
    """Whether an earlier start logged this before the checkpoint that this one goes on from; a fresh one keeps
    nothing."""
    if context.fresh:
        return False
    return step <= context.start_version and metrics.get(COLLECTIONS, 0) <= context.start_rollout_id


def keep_lines(path: Path, context: RunContext) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Moves the lines beyond the checkpoint, and a torn last one, to `<name>.superseded.jsonl`; gives the lines that
    stay and those that were moved, without torn ones."""
    if not path.exists():
        return [], []
    kept: list[str] = []
    later: list[str] = []
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for line in path.read_text("utf-8", errors="replace").splitlines(keepends=True):
        try:
            values = json.loads(line)
            fits = belongs(values["step"], values, context) and line.endswith("\n")
        except (ValueError, KeyError, TypeError, AttributeError):
            later.append(line)
            continue
        (kept if fits else later).append(line)
        found[not fits].append(values)
    if later:
        with path.with_name(f"{path.stem}.superseded.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(later)
        write_whole(path, "".join(kept))
    return found
