"""Files of prepared rows, and the folder that appears whole."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reroll.config.atomic import naming, sync_folder
from reroll.tasks.catalog.manifest import SplitFacts
from reroll.tasks.catalog.sources import SourceError

READ_ONLY = 0o444


class SplitWriter:
    """Writes one split's rows and digests them on the way."""

    def __init__(self, folder: Path, split: str) -> None:
        self.path = folder / f"{split}.jsonl"
        self.rows = 0
        self.given_prompts = 0
        self.left_out: Counter[str] = Counter()
        self.duplicates: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._bytes = 0

    def __enter__(self) -> SplitWriter:
        self._file = self.path.open("xb")
        return self

    def __exit__(self, *raised: object) -> None:
        with naming(self.path):
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()
        self.path.chmod(READ_ONLY)

    def write(self, line: bytes) -> None:
        with naming(self.path):
            self._file.write(line)
        self._digest.update(line)
        self._bytes += len(line)
        self.rows += 1

    def facts(self) -> SplitFacts:
        return SplitFacts(
            file=self.path.name,
            sha256=self._digest.hexdigest(),
            bytes=self._bytes,
            rows=self.rows,
            given_prompts=self.given_prompts,
            left_out=dict(sorted(self.left_out.items())),
            duplicates=dict(sorted(self.duplicates.items())),
        )


def line_of(row: dict[str, Any]) -> bytes:
    """A row as a line; ValueError or TypeError for what JSON, or UTF-8, does not hold."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@contextmanager
def staging(output: Path) -> Iterator[Path]:
    """An empty folder beside `output`, locked, to be filled and then renamed to it; removed where that is not done.
    What a preparation that was killed left there is cleared by the next one."""
    output = output.resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = output.parent / f".{output.name}.preparing"
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SourceError(f"--output {output}: another preparation is writing it; wait for its end") from None
        try:
            if not _is_still(folder, lock):
                raise SourceError(f"--output {output}: another preparation has just written it; start again")
            for left in folder.iterdir():
                left.unlink()
            yield folder
        finally:
            if _is_still(folder, lock):
                shutil.rmtree(folder)
    finally:
        os.close(lock)


def _is_still(folder: Path, opened: int) -> bool:
    """Whether the folder is the one that was opened: it has been renamed once it is published."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def publish(folder: Path, output: Path) -> None:
    """Puts the finished folder into its place, which is empty or not there."""
    output = output.resolve()
    sync_folder(folder)
    with naming(output):
        folder.rename(output)
    sync_folder(output.parent)
