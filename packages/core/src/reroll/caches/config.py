"""`[compiler_cache]`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from reroll.api import ConfigSection, Problem, RunFile
from reroll.config.folders import user_cache


class CompilerCacheSection(ConfigSection):
    section: ClassVar[str] = "compiler_cache"

    enabled: bool = True
    """Trainer ranks and engines keep what Triton and torch.compile make for the runs that come after. False: each
    compiler has its own default, a folder that may be gone after a restart of the machine."""
    root: Path | None = None
    """Absolute folder that holds the caches, one for each build of the compilers; on a file system that nodes share,
    they share what was compiled. By default `compiler-cache` in `REROLL_CACHE`, or else in `reroll` in the user's cache
    folder (`XDG_CACHE_HOME`)."""
    expiry_days: float = Field(7.0, gt=0)
    """Days after which what no run has used is removed, before a run starts; more of them keep more on disk."""

    def folder(self) -> Path:
        """The root in use."""
        return user_cache() / "compiler-cache" if self.root is None else self.root

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if not self.enabled:
            for name in ("root", "expiry_days"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield Problem(
                        f"compiler_cache.{name}", "does nothing: compiler_cache.enabled is false", "leave it out"
                    )
        elif self.root is not None and not self.root.is_absolute():
            yield Problem(
                "compiler_cache.root",
                f"{str(self.root)!r} is not absolute: every worker would have another one",
                "give the whole path; ~ and variables are not expanded",
            )

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        root = self.folder()
        if not self.enabled or not root.is_absolute():
            return
        if reason := unusable(root):
            yield Problem(
                "compiler_cache.root",
                f"{str(root)!r} {reason}",
                "give a folder of your own, or set compiler_cache.enabled = false",
            )


def unusable(root: Path) -> str | None:
    """Why the folder cannot be used, or could be changed by somebody else: what lies in it is run as a program. Nothing
    is made. On a Ray cluster the nodes' folders are not seen from here."""
    try:
        there = root
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        about = there.stat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(about.st_mode):
        return "is no folder" if there == root else f"cannot be made: {there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return "cannot be written to" if there == root else f"cannot be made: {there} cannot be written to"
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        return f"could be changed by every user of the machine, by way of {there}"
    if there == root and about.st_uid not in (os.getuid(), 0):
        return "belongs to another user, who could change the programs in it"
    return None
