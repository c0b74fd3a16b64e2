"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""Ends the name of a file that is being written; one that is left over can be removed."""


def write_whole(path: Path, text: str) -> None:
    """Writes the file beside its place, has it on disk, and renames it into place: a reader, and a machine that loses
    power, see the old file or the new one."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file of any length to write, which takes the place of `path` at the end, on disk by then. Where anything fails,
    `path` is as it was; OSError names a file."""
    partial = path.with_name(path.name + PARTIAL)
    with naming(path):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """The system names no file when one cannot be written to, because the disk is full for example."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Has the names in the folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
