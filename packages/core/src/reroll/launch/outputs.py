"""Folders of runs that were given none: `outputs/<run.name>-<date>-<time>`."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

OUTPUTS = Path("outputs")


def make_new_folder(name: str) -> Path:
    """A folder for another run of that name, which no other has; OSError where there can be none."""
    base = OUTPUTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")


def folders_of(name: str) -> list[Path]:
    """What was made for runs of exactly that name, the newest first."""
    made = re.compile(re.escape(name) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    found = [(match, path) for path in OUTPUTS.glob("*") if (match := made.fullmatch(path.name)) and path.is_dir()]
    found.sort(key=lambda item: (item[0][1], int(item[0][2] or 1)), reverse=True)
    return [path for _, path in found]
