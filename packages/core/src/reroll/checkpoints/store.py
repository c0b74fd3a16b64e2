"""Checkpoint folders: how one becomes whole, how that is told, and which ones stay.

A folder is a checkpoint once its manifest is there, which is renamed into place after everything else is on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from reroll.api import CheckpointError
from reroll.config.atomic import sync_folder, write_whole
from reroll.models.files import sha256_file
from reroll.traces.checked import Checked, Table, read_checked

SCHEMA = 1
FOLDER = "checkpoints"
"""Below a run's output."""
MANIFEST = "manifest.json"
PARTIAL = "manifest.json.partial"
DELETING = ".deleting-"
"""Begins the name of a folder that is being deleted, so that what is left of it is never taken for a checkpoint."""
PREVIOUS = ".previous"
"""Ends the name of a whole checkpoint while another one of the same step is written."""
NAME = re.compile(rf"step_(0|[1-9][0-9]*)({re.escape(PREVIOUS)})?")
THREADS = 8

ItemT = TypeVar("ItemT")
FoundT = TypeVar("FoundT")


class SavedFile(Checked):
    size: Annotated[int, Field(ge=0)]
    sha256: str


class Manifest(Checked):
    """What a whole checkpoint holds.

    Attributes:
        step: completed optimizer steps; collection: the next one.
        created: UTC, ISO 8601.
        files: path below the folder → size and digest.
        facts: whatever the caller has to say about it.
    """

    step: Annotated[int, Field(ge=0)]
    collection: Annotated[int, Field(ge=0)]
    created: str
    files: dict[str, SavedFile]
    facts: Table


class Checkpoint(NamedTuple):
    """A whole one."""

    folder: Path
    manifest: Manifest


class Search(NamedTuple):
    """The newest whole checkpoint, and why newer ones were passed over."""

    found: Checkpoint | None
    passed_over: list[str]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        root: the folder that holds `step_<version>`; `<output>/checkpoints`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._verified: dict[Path, object] = {}
        """Folders whose digests this process has compared or written → sizes and times of their files then."""

    def folder(self, step: int) -> Path:
        return self.root / f"step_{step}"

    def begin(self, step: int) -> Path:
        """An empty folder for the checkpoint of that step. What an interrupted save left there is deleted; a
        checkpoint that is there is kept until `complete` puts the new one in its place."""
        folder = self.folder(step)
        previous = folder.with_name(folder.name + PREVIOUS)
        try:
            self._finish_deleting()
            if self._intact(folder):
                if previous.exists():
                    self._delete(previous)
                folder.rename(previous)
            elif folder.exists():
                self._delete(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be made: {error}; free space, or set output.dir") from None
        return folder

    def complete(self, step: int, collection: int, facts: Mapping[str, Any]) -> Manifest:
        """Makes the folder of `begin`, in which everything is written by now, a whole checkpoint."""
        folder = self.folder(step)
        try:
            paths = _files(folder)
            if not paths:
                raise CheckpointError(f"{folder} holds no files to complete a checkpoint with")
            sealed = _in_threads(_seal, paths.values())
            manifest = Manifest(
                step=step,
                collection=collection,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                files=dict(zip(paths, sealed, strict=True)),
                facts=dict(facts),
            )
            for inner in {path.parent for path in paths.values()}:
                while inner != folder:
                    sync_folder(inner)
                    inner = inner.parent
            sync_folder(folder)
            write_whole(folder / MANIFEST, json.dumps({"schema": SCHEMA, **manifest.model_dump()}, indent=2) + "\n")
            sync_folder(self.root)
            self._verified[folder] = _signature(folder, manifest)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be completed: {error}; free space, or set output.dir") from None
        previous = folder.with_name(folder.name + PREVIOUS)
        with suppress(OSError):  # `prune` tries again, and tells
            if previous.exists():
                self._delete(previous)
        return manifest

    def discard(self, step: int) -> None:
        """Deletes what a save that failed left in the folder of `begin`, so that the next one finds its room."""
        folder = self.folder(step)
        if folder.exists() and not self._intact(folder):
            self._delete(folder)

    def whole(self) -> Search:
        """The newest checkpoint of which every file is there and unchanged."""
        passed_over: list[str] = []
        for folder in self.folders():
            try:
                return Search(self.check(folder), passed_over)
            except CheckpointError as error:
                passed_over.append(str(error))
        return Search(None, passed_over)

    def check(self, folder: Path, thorough: bool = True) -> Checkpoint:
        """The checkpoint in that folder; CheckpointError says why it is not whole.

        Args:
            thorough: compare digests as well as sizes.
        """
        checkpoint = Checkpoint(folder, check_checkpoint(folder, thorough))
        if thorough:
            self._verified[folder] = _signature(*checkpoint)
        return checkpoint

    def folders(self) -> list[Path]:
        """Those of checkpoints, whole or not, newest first."""
        return step_folders(self.root)

    def prune(self, keep_last: int, keep_every: int | None = None) -> list[Path]:
        """Deletes old checkpoints and gives their folders; the newest whole one always stays.

        Args:
            keep_last: so many of the newest stay.
            keep_every: those whose step is a multiple of it stay.
        """
        newest = self._newest_whole()
        if newest is None:
            return []
        folders = self.folders()
        older = folders[folders.index(newest) + 1 :]  # a newer one is being written, or is somebody's to look at
        intact = [folder for folder in older if self._intact(folder)]
        kept = set(intact[: keep_last - 1])
        deleted = []
        for folder in older:
            multiple = keep_every is not None and _step(folder) % keep_every == 0 and (folder / MANIFEST).exists()
            if folder not in kept and not multiple:
                try:
                    self._delete(folder)
                except OSError as error:
                    raise CheckpointError(f"{folder} cannot be deleted: {error}; delete it by hand") from None
                deleted.append(folder)
        if left := self._finish_deleting():
            raise CheckpointError(f"{left[0]} cannot be deleted; delete it by hand")
        return deleted

    def _newest_whole(self) -> Path | None:
        """Reads only what has changed since this process read or wrote it."""
        for folder in self.folders():
            try:
                manifest = check_checkpoint(folder, thorough=False)
                if self._verified.get(folder) != _signature(folder, manifest):
                    self.check(folder)
            except (CheckpointError, OSError):
                continue
            return folder
        return None

    def _intact(self, folder: Path) -> bool:
        try:
            check_checkpoint(folder, thorough=False)
        except CheckpointError:
            return False
        return True

    def _delete(self, folder: Path) -> None:
        """Under another name before the first file goes: a crash leaves nothing that looks like a checkpoint."""
        target = self.root / f"{DELETING}{folder.name}-{secrets.token_hex(4)}"
        folder.rename(target)
        sync_folder(self.root)
        self._verified.pop(folder, None)
        _remove(target)

    def _finish_deleting(self) -> list[Path]:
        """Goes on with what a crash left; gives what cannot be deleted."""
        for path in self.root.glob(f"{DELETING}*"):
            _remove(path)
        return list(self.root.glob(f"{DELETING}*"))


def _remove(path: Path) -> None:
    """Of a link to a folder elsewhere, such as another disk, the link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def find_checkpoint(path: Path, step: int | None = None, thorough: bool = True) -> Checkpoint:
    """The whole checkpoint that a user means by `path`; CheckpointError says what there is instead.

    Args:
        path: a folder `…/checkpoints/step_N`, a run's folder, or its `checkpoints`: of those two the newest whole one.
        step: of a run's checkpoints that of this step.
        thorough: compare digests as well as sizes.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is no folder: give a run's folder, or one of its checkpoints/step_N")
    if (path / MANIFEST).exists() or NAME.fullmatch(path.name):
        manifest = check_checkpoint(path, thorough)
        if step not in (None, manifest.step):
            raise CheckpointError(f"{path} is of step {manifest.step}, not of {step}: give the run's folder")
        return Checkpoint(path, manifest)
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    folders = step_folders(root)
    if not folders:
        raise CheckpointError(f"{path} holds no checkpoints: a run makes them with checkpoint.save_interval")
    wanted = [folder for folder in folders if step is None or _step(folder) == step]
    if not wanted:
        there = ", ".join(folder.name for folder in folders)
        raise CheckpointError(f"{root} holds no checkpoint of step {step}; there are: {there}")
    reasons: list[str] = []
    for folder in wanted:
        try:
            return Checkpoint(folder, check_checkpoint(folder, thorough))
        except CheckpointError as error:
            reasons.append(str(error))
    of_step = "" if step is None else f" of step {step}"
    raise CheckpointError("\n".join([f"{root} holds no whole checkpoint{of_step}:", *reasons]))


def check_checkpoint(folder: Path, thorough: bool = True) -> Manifest:
    """What a whole checkpoint holds; CheckpointError names the folder, and the file that is not as it was."""
    fault = f"{folder} is not whole"
    manifest = _read_manifest(folder)
    if NAME.fullmatch(folder.name) and _step(folder) != manifest.step:
        raise CheckpointError(f"{fault}: its {MANIFEST} is of step {manifest.step}; the folder was renamed")
    if not manifest.files:
        raise CheckpointError(f"{fault}: its {MANIFEST} names no file; use an older checkpoint")
    for name, saved in manifest.files.items():
        path = folder / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"{fault}: {MANIFEST} names {name!r}, which is outside of it")
        try:
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{fault}: {name} is missing: {error}; use an older checkpoint") from None
        if size != saved.size:
            raise CheckpointError(
                f"{fault}: {name} has {size} bytes and had {saved.size}; copy it again, or use an older checkpoint"
            )
    if thorough:
        digests = _in_threads(lambda name: _digest(folder, name), manifest.files)
        for (name, saved), digest in zip(manifest.files.items(), digests, strict=True):
            if digest != saved.sha256:
                raise CheckpointError(
                    f"{fault}: {name} is not what was written (SHA-256 {digest[:12]}…, was {saved.sha256[:12]}…); copy "
                    "it again, or use an older checkpoint"
                )
    return manifest


def step_folders(root: Path) -> list[Path]:
    """Folders of checkpoints, whole or not, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (_step(path), not path.name.endswith(PREVIOUS)), reverse=True)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_").removesuffix(PREVIOUS))


def _read_manifest(folder: Path) -> Manifest:
    try:
        return read_checked(Manifest, folder / MANIFEST, SCHEMA)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is not whole: {MANIFEST} is missing, its save did not come to its end; use an older checkpoint"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{folder} is not whole: {error}; use an older checkpoint") from None


def _files(folder: Path) -> dict[str, Path]:
    """Everything in the folder but its manifest: path below it → path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path for name, path in named.items() if name not in (MANIFEST, PARTIAL)}


def _seal(path: Path) -> SavedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return SavedFile(size=os.fstat(file.fileno()).st_size, sha256=digest)


def _digest(folder: Path, name: str) -> str:
    try:
        return sha256_file(folder / name)
    except OSError as error:
        raise CheckpointError(f"{folder} is not whole: {name} cannot be read: {error}; use an older one") from None


def _signature(folder: Path, manifest: Manifest) -> object:
    stats = [(name, (folder / name).stat()) for name in (MANIFEST, *manifest.files)]
    return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]


def _in_threads(work: Callable[[ItemT], FoundT], items: Iterable[ItemT]) -> list[FoundT]:
    """Digests are computed without the interpreter's lock."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))
