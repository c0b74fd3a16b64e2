"""Folders of this machine that outlast a run."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Where reroll keeps what it can make again: `REROLL_CACHE`, else `reroll` in the user's cache folder. Absolute."""
    if own := os.environ.get("REROLL_CACHE"):
        return Path(own).expanduser().absolute()
    # The specification of XDG has relative paths ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", "")).expanduser()
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "reroll"
