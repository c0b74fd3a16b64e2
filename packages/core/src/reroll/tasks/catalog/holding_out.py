"""Held-out splits of sources that have one split only: a hash of what a row asks decides."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable

from reroll.tasks.catalog.sources import SourceError

STAGED = "staged"
"""Name of the split whose rows wait for being divided."""
DIGITS = 32


def place_of(asked: bytes) -> str:
    """Where a question stands in an order that has nothing to do with its source: the first ones are held out."""
    return hashlib.sha256(b"held out:" + asked).hexdigest()[:DIGITS]


def bound(places: Iterable[str], held_out: int | float, rows: int) -> str:
    """Rows whose place is below it are held out.

    Args:
        places: of all rows.
        held_out: a number of rows, or a share between 0 and 1. A share is that of all questions that there could be:
            what belongs to it does not change when a source grows.
        rows: how many rows there are.
    """
    if isinstance(held_out, float):
        return f"{int(held_out * 16**DIGITS):0{DIGITS}x}"
    if held_out >= rows:
        raise SourceError(f"--held-out {held_out}: the source has {rows:,} rows, and some have to be left to train on")
    return heapq.nsmallest(held_out + 1, places)[-1]


def held_out_option(text: str) -> int | float:
    """A number of rows, or a share written with a point."""
    try:
        value = float(text) if "." in text else int(text)
    except ValueError:
        value = 0
    if value <= 0 or (isinstance(value, float) and not value < 1):
        raise SourceError(f"--held-out {text}: give a number of rows such as 500, or a share such as 0.05")
    return value
