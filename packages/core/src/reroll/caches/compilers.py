"""Caches of compilers: where each build of them has its own, and what is removed from them.

Both compilers name what they keep by a digest, and read it by that name. In inductor's (torch 2.13, the default is
`torchinductor_<user>` in the temporary folder) the graphs' digests cover torch's sources and version, and on a CUDA
device Triton's version and the device's name; those of C++ kernels cover source and compiler command, which asks for
the machine's own instructions without naming them. Triton's digests cover its own sources, the kernel, the target and
the environment's options. Neither covers the interpreter that loads what was compiled as its extension, or the
machine that a shared folder is read on. So a folder is one build's: interpreter, versions of torch, Triton and SGLang,
and the processor's features as this machine has them; the nodes of a cluster are taken to be alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from reroll.api import counted
from reroll.caches.config import CompilerCacheSection, unusable

logger = logging.getLogger("reroll")
VARIABLES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
"""Variable → folder in that of a build."""
BUILD = re.compile(r"[0-9a-f]{24}")
COMPILERS = re.compile(r"(torch|triton|pytorch_triton\w*|sglang)-.*\.dist-info", re.IGNORECASE)
LOCK = "in-use.lock"
DAY_SECONDS = 86400.0
MOST_TOLD = 20


def cache_environment(section: CompilerCacheSection, python: str | None = None) -> dict[str, str]:
    """Variables for a worker. What the user has set himself stays as it is, on other machines as well.

    Args:
        python: interpreter of the environment that the compilers are in, where it is not this one.
    """
    if not section.enabled:
        return {}
    folder = section.folder() / build_name(python or sys.executable)
    return {name: os.environ.get(name) or str(folder / inside) for name, inside in VARIABLES.items()}


@cache
def build_name(python: str) -> str:
    """Names a build: the same for two environments only where one may read what the other has compiled."""
    # Of a virtual environment, not of what its interpreter is a link to.
    environment = Path(os.path.abspath(Path(python).expanduser())).parent.parent
    facts = {
        "environment": str(environment),
        "interpreter": os.path.realpath(python),
        "packages": sorted(
            f"{path.name} {path.stat().st_mtime_ns}"
            for path in environment.glob("lib*/python3*/site-packages/*.dist-info")
            if COMPILERS.fullmatch(path.name)
        ),
        "python": sys.version,
        "machine": platform.machine(),
        "processor": _processor_features(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _processor_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")


@contextlib.contextmanager
def held_cache(section: CompilerCacheSection, environments: Iterable[Mapping[str, str]]) -> Iterator[list[Path]]:
    """Removes what has expired, then keeps other runs from removing anything that this one may use. Gives what was
    removed, and tells it to the log. No folder is made: compilers make theirs when they compile, and what is new has
    not expired.

    Args:
        environments: of all kinds of workers that the run will have.
    """
    root = section.folder()
    if not section.enabled or not root.is_dir() or unusable(root):
        yield []
        return
    removed = remove_expired(root, section.expiry_days * DAY_SECONDS, time.time())
    if removed:
        _tell(root, removed, section.expiry_days)
    given = (item for environment in environments for item in environment.items())
    with contextlib.ExitStack() as locks:
        for folder in {Path(path).parent for name, path in given if name in VARIABLES}:
            if folder.parent == root:
                locks.enter_context(_lock(folder, exclusive=False))
        yield removed


def _tell(root: Path, removed: list[Path], days: float) -> None:
    names = [str(path.relative_to(root)) for path in sorted(removed)[:MOST_TOLD]]
    more = f" and {len(removed) - MOST_TOLD} more" if len(removed) > MOST_TOLD else ""
    logger.info(
        "compiler cache %s: removed the files of %s, which nothing had used for %g days: %s%s",
        root, counted(len(removed), "folder"), days, ", ".join(names), more,
    )  # fmt: skip


def remove_expired(root: Path, seconds: float, now: float) -> list[Path]:
    """Removes entries that were neither written nor read for longer than `seconds`: an entry is a folder's own files,
    which compilers read together. Builds that a run has locked are left alone, links are never followed, and what does
    not have a build's name is not looked at."""
    removed: list[Path] = []
    for folder in sorted(root.iterdir()):
        if not BUILD.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        with _lock(folder, exclusive=True) as held:
            if held:
                removed += _remove_from(folder, now - seconds)
                with contextlib.suppress(OSError):  # whoever waits for the lock meanwhile has nothing here to lose
                    if [path.name for path in folder.iterdir()] == [LOCK]:
                        (folder / LOCK).unlink()
                        folder.rmdir()
    return removed


def _remove_from(folder: Path, before: float) -> list[Path]:
    """Bottom up, and by descriptors of folders: whatever somebody makes of a path meanwhile, nothing outside is
    touched."""
    removed: list[Path] = []
    for path, folders, names, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        top = Path(path) == folder
        files = [name for name in names if not (top and name == LOCK)]
        if files and all(_last_used(name, descriptor) < before for name in files):
            for name in files:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=descriptor)
            removed.append(Path(path))
        for name in folders:
            with contextlib.suppress(OSError):  # one that is not empty stays, and so does a link to one
                if _last_used(name, descriptor) < before:
                    os.rmdir(name, dir_fd=descriptor)
    return removed


def _last_used(name: str, descriptor: int) -> float:
    """Of a file the time of its last use; infinitely late for one that is gone."""
    try:
        about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:
        return float("inf")
    # A folder is read by whoever looks for something to remove.
    return about.st_mtime if stat.S_ISDIR(about.st_mode) else max(about.st_atime, about.st_mtime)


@contextlib.contextmanager
def _lock(folder: Path, exclusive: bool) -> Iterator[bool]:
    """Whether the build's folder is locked for what follows; False where another run holds it, and where there is no
    such folder."""
    try:
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder / LOCK, flags, 0o600)
    except (OSError, ImportError):
        yield False
        return
    try:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            # A run that begins waits for one that removes something, which is soon over.
            fcntl.flock(descriptor, kind | (fcntl.LOCK_NB if exclusive else 0))
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
