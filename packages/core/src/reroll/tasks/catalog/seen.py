"""Prompts that were met already, in memory that does not grow with their number."""

from __future__ import annotations

import hashlib
import sqlite3
from types import TracebackType
from typing import NamedTuple


class Met(NamedTuple):
    """An earlier row with the same prompt: its split, and whether its target is the same as well."""

    split: str
    same_target: bool


class SeenPrompts:
    """Remembers every prompt with its split, on disk once there are many: SQLite keeps a database without a name in its
    page cache, and moves what does not fit there to a file that nobody else sees."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("PRAGMA cache_size = -65536")  # KiB: what is beyond goes to the file
        self._database.execute(
            "CREATE TABLE seen (prompt BLOB PRIMARY KEY, split TEXT NOT NULL, target BLOB NOT NULL) WITHOUT ROWID"
        )

    def add(self, prompt: bytes, split: str, target: bytes) -> Met | None:
        """Remembers a prompt; where it is known already, says from where and changes nothing."""
        key, judged_by = hashlib.sha256(prompt).digest()[:16], hashlib.sha256(target).digest()[:16]
        added = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (key, split, judged_by))
        if added.rowcount:
            return None
        found = self._database.execute("SELECT split, target FROM seen WHERE prompt = ?", (key,)).fetchone()
        return Met(found[0], found[1] == judged_by)

    def __enter__(self) -> SeenPrompts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._database.close()
