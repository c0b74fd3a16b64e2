"""Folders that weights pass through. Their names say whose they are, so that what a killed run left can be told from
what another run is using."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

NAME = re.compile(r"reroll-weights-\d+-([0-9a-f]{8})-(\d+)-[^-]*")


def make_folder(parent: Path, version: int) -> Path:
    """A new folder below `parent` that belongs to this process."""
    return Path(tempfile.mkdtemp(prefix=f"reroll-weights-{version}-{process_space()}-{os.getpid()}-", dir=parent))


def remove_stale_folders(parent: Path) -> None:
    """Removes the folders of this user whose process is gone; what cannot be judged or removed stays."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            named = NAME.fullmatch(entry.name)
            if named and named[1] == process_space() and _is_ours(entry) and not _lives(int(named[2])):
                shutil.rmtree(entry.path, ignore_errors=True)


@cache
def process_space() -> str:
    """Names the space in which a process id means a process: other machines may share the folder, and other
    containers with ids of their own."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return sha256("\n".join(parts).encode()).hexdigest()[:8]


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no process id at all
        return True
    return True
