"""The candidates in the saved rollouts of one step."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reroll.api import Derivation
from reroll.replay.records import (
    anchor_seed,
    identity,
    is_derived,
    original_reward,
    read_line,
    stamp,
    unusable,
)
from reroll.traces.names import FILE, MARKER

FileState = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, bytes."""
Signature = tuple[FileState, FileState | None]
"""Of a step's file and of its marker, where that is asked for: what changes when the step is written again."""


class Handle(NamedTuple):
    """A candidate: where its record is, and what is known of it without reading.

    Attributes:
        path, offset, length: the record's line, its end included, in bytes.
        step: the collection that it was saved with.
        reward: that the rollout got; None where it was not scored.
        source_id: the record's identity.
        env_name: of the data source that its task is from; None where the record does not say.
        node: where the derived task starts; None for the final state.
    """

    path: Path
    offset: int
    length: int
    step: int
    reward: float | None
    source_id: str
    env_name: str | None
    node: int | None


@dataclass
class Counts:
    """What was found in the lines that were read.

    Attributes:
        usable: lines from which something could be derived, whatever was selected.
        derived: usable ones whose task was derived itself.
        skipped: usable ones that the choice of sources leaves out.
        env_names: usable lines by the data source that they name; `""` for those that name none.
    """

    steps: int = 0
    lines: int = 0
    usable: int = 0
    derived: int = 0
    skipped: int = 0
    env_names: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        for name in ("steps", "lines", "usable", "derived", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.env_names.update(other.env_names)


@dataclass(frozen=True)
class StepIndex:
    """What one step offers.

    Attributes:
        handles: in the order of the file.
        whole: whether the file was read to its end.
        fault: what is wrong with lines of the file, for a person; None where nothing is.
    """

    path: Path
    signature: Signature
    handles: tuple[Handle, ...]
    whole: bool
    counts: Counts
    fault: str | None


@dataclass(frozen=True)
class Choice:
    """Which records are sources, and where what is derived from them starts.

    Attributes:
        source_envs: the data sources to take; None for all records that were not derived themselves.
    """

    derivation: Derivation
    source_envs: frozenset[str] | None
    seed: int

    def takes(self, record: Mapping[str, Any]) -> bool:
        if self.source_envs is None:
            return not is_derived(record)
        name = stamp(record).env_name
        return isinstance(name, str) and name in self.source_envs

    def handles(self, record: Mapping[str, Any], line: bytes, path: Path, offset: int, step: int) -> list[Handle]:
        """A candidate for each anchor of a usable record that is taken; ValueError where the derivation fails."""
        source, env_name = identity(record, line), stamp(record).env_name
        try:
            anchors = self.derivation.anchors(record, anchor_seed(self.seed, source))
        except Exception as error:
            raise ValueError(f"{self.derivation.name!r} failed: {type(error).__name__}: {error}") from error
        name = sys.intern(env_name) if type(env_name) is str else None
        reward = original_reward(record)
        return [Handle(path, offset, len(line), step, reward, source, name, anchor.node) for anchor in anchors]

    def read(self, handle: Handle) -> dict[str, Any]:
        """The record of a candidate; ValueError or OSError where it is none any more."""
        with handle.path.open("rb") as file:
            file.seek(handle.offset)
            line = file.read(handle.length)
        record = read_line(line)
        if why := unusable(record):
            raise ValueError(why)
        if not self.takes(record) or handle not in self.handles(record, line, *handle[:2], handle.step):
            raise ValueError("another record is in its place")
        return record


def step_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """The folders `step_N`, newest first, found by their names alone; nothing where `folder` does not exist."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    found = (re.fullmatch(r"step_(0|[1-9][0-9]*)", name) for name in names)
    for number in sorted((int(match[1]) for match in found if match), reverse=True):
        yield number, folder / f"step_{number}"


def signature_of(folder: Path, marked: bool) -> Signature | None:
    """The signature of a step; None where its file, or with `marked` its marker, is not there, and OSError where it
    cannot be looked at, or is no file."""
    try:
        marker = _state(os.stat(folder / MARKER)) if marked else None
        file = os.stat(folder / FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(file.st_mode):
        raise OSError(f"{FILE} is no file")  # a pipe, for one, would be waited for
    return _state(file), marker


def _state(found: os.stat_result) -> FileState:
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_step(
    number: int, path: Path, signature: Signature, choice: Choice, room: int, without: Set[Handle]
) -> StepIndex:
    """Reads a step's file until there are `room` candidates; OSError where it cannot be read.

    Args:
        signature: taken before, so that a change while the file is read is seen later.
        without: candidates to pass over.
    """
    counts, handles = Counts(steps=1), list[Handle]()
    faults, first, offset, whole = 0, "", 0, True
    with path.open("rb") as file:
        for number_of_line, line in enumerate(file, 1):
            if len(handles) >= room:
                whole = False
                break
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            counts.lines += 1
            try:
                found = _candidates(number, path, start, line, choice, counts)
                handles += (handle for handle in found if handle not in without)
            except Exception as error:  # lines are anybody's data: the next one may be of use
                told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                first = first or f"line {number_of_line}: {told}"
                faults += 1
    fault = f"{path}: {faults} of {counts.lines} lines are skipped, first {first}" if faults else None
    return StepIndex(path, signature, tuple(handles[:room]), whole and len(handles) <= room, counts, fault)


def _candidates(number: int, path: Path, offset: int, line: bytes, choice: Choice, counts: Counts) -> list[Handle]:
    record = read_line(line)
    if why := unusable(record):
        raise ValueError(why)
    counts.usable += 1
    counts.derived += is_derived(record)
    name = stamp(record).env_name
    counts.env_names[name if isinstance(name, str) else ""] += 1
    if not choice.takes(record):
        counts.skipped += 1
        return []
    return choice.handles(record, line, path, offset, number)
