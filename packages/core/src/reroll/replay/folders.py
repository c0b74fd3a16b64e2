"""Where a run keeps its rollouts."""

from __future__ import annotations

from pathlib import Path

from reroll.reporting.config import RUN_FILE
from reroll.traces.names import ROLLOUTS


def rollouts_folder(folder: Path) -> Path:
    """Where the steps lie: in `rollouts` of a run's folder, which may not have begun yet, or in the folder itself."""
    inside = folder / ROLLOUTS
    return inside if inside.is_dir() or (folder / RUN_FILE).exists() or not folder.is_dir() else folder


def run_folder(folder: Path) -> Path:
    """The folder of the run, with its run file: the one that is given, or that in which its rollouts lie."""
    return rollouts_folder(folder).parent if rollouts_folder(folder) != folder or folder.name == ROLLOUTS else folder
