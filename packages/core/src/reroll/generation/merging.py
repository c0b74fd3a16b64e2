"""The results of several folders counted as one: shards, in any order, some of them twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from reroll.api import counted
from reroll.generation.entries import Entry
from reroll.generation.protocol import FILE, GenerationProtocol, ResultsError, read_protocol
from reroll.generation.store import JOURNAL, read_journal
from reroll.generation.tally import Tally, Unfinished

LISTED = 5
"""Tasks of a folder that are named where more are not finished."""

Warn = Callable[[str], None]


class Folder(NamedTuple):
    """A results folder, of one shard or of all tasks."""

    path: Path
    protocol: GenerationProtocol

    def entries(self, warn: Warn) -> Iterator[Entry]:
        """What its journal holds; none, with a warning, where there is no journal."""
        if not (self.path / JOURNAL).exists():
            warn(
                f"{self.path} has no {JOURNAL}, and nothing of it is counted; start its generation again, which makes "
                "one from the traces that are there"
            )
            return
        yield from read_journal(self.path, warn)


@dataclass(frozen=True)
class Merged:
    """Folders that were counted together.

    Attributes:
        gaps: folder → what another start of it would run.
        absent: shards that were not given, as `2 of 3`.
    """

    folders: Sequence[Folder]
    tally: Tally
    gaps: dict[Path, Gap] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def protocol(self) -> GenerationProtocol:
        return self.folders[0].protocol

    @property
    def complete(self) -> bool:
        return not self.gaps and not self.absent

    def lines(self) -> Iterator[str]:
        """What is missing, and what was met again."""
        if self.absent:
            yield f"not given: shard {', '.join(self.absent)}"
        for path, gap in self.gaps.items():
            yield f"{path}: {gap}"
        if self.tally.repeated:
            yield f"{counted(self.tally.repeated, 'result')} met again, and counted once"


class Gap(NamedTuple):
    """What another start of a folder would run.

    Attributes:
        tasks: that are not finished; attempts: of them, that are left; first: the first of these tasks.
    """

    tasks: int
    attempts: int
    first: list[Unfinished]

    def __str__(self) -> str:
        named = [f"{item.task or f'task {item.position}'} ({_trials(item.trials)})" for item in self.first]
        more = ", …" if self.tasks > len(named) else ""
        what = f"{counted(self.attempts, 'attempt')} of {counted(self.tasks, 'task')}"
        return f"{what} not finished: {', '.join(named)}{more}"


def results_folders(paths: Iterable[Path]) -> list[Folder]:
    """The folders of results that the paths stand for, to be counted together: see `each_folder`. ResultsError where
    two were measured differently."""
    found = each_folder(paths)
    for folder in found[1:]:
        _check_alike(found[0], folder)
    return found


def each_folder(paths: Iterable[Path]) -> list[Folder]:
    """The paths themselves, or the folders of results right below them. ResultsError where there are none."""
    return [folder for path in paths for folder in _folders(path)]


def merge(folders: Sequence[Folder], warn: Warn) -> Merged:
    """Counts every attempt once; of two that were judged, the one of the folder given first."""
    first = folders[0].protocol
    positions = sorted(set(chain.from_iterable(folder.protocol.positions() for folder in folders)))
    tally = Tally(positions, first.n_trials)
    for folder in folders:
        beyond = tally.left_out
        tally.add_all(folder.entries(warn))
        if count := tally.left_out - beyond:
            what = counted(count, "result")
            warn(f"{folder.path}: {what} of other tasks, or beyond {first.n_trials} trials, left out")
    return Merged(folders, tally, _gaps(folders, tally), _absent(folders))


def _folders(path: Path) -> list[Folder]:
    if not path.is_dir():
        raise ResultsError(f"{path} is no folder; give the results folder of a generation")
    protocol = read_protocol(path)
    if protocol is not None:
        return [Folder(path, protocol)]
    children = [child for child in sorted(path.iterdir()) if child.is_dir()]
    below = [Folder(child, found) for child in children if (found := read_protocol(child))]
    if not below:
        raise ResultsError(
            f"{path} holds no results of `reroll generate`: neither it nor a folder right below has a {FILE}"
        )
    return below


def _check_alike(one: Folder, other: Folder) -> None:
    differences = one.protocol.differences(other.protocol)
    if one.protocol.n_trials != other.protocol.n_trials:
        differences.append(f"n_trials: {one.protocol.n_trials!r} and {other.protocol.n_trials!r}")
        remedy = "; a generation that is started again with the larger generation.n_trials adds what it lacks"
    else:
        remedy = ""
    if differences:
        listed = "\n  ".join(differences)
        raise ResultsError(
            f"{one.path} and {other.path} were measured differently, and are not counted together{remedy}:\n  {listed}"
        )


def _gaps(folders: Sequence[Folder], tally: Tally) -> dict[Path, Gap]:
    """By the folders that are to hold the tasks; one that lies in several is told of each."""
    left = {item.position: item for item in tally.unfinished()}
    gaps: dict[Path, Gap] = {}
    for folder in folders:
        items = [left[position] for position in folder.protocol.positions() if position in left] if left else []
        if items:
            gaps[folder.path] = Gap(len(items), sum(len(item.trials) for item in items), list(islice(items, LISTED)))
    return gaps


def _absent(folders: Sequence[Folder]) -> list[str]:
    shards = {folder.protocol.shard or (1, 1) for folder in folders}
    if (1, 1) in shards:
        return []
    # Shards of another count may hold the tasks of one that was not given.
    held = set(chain.from_iterable(folder.protocol.positions() for folder in folders))
    absent = []
    for of in sorted({of for _, of in shards}):
        like = next(folder.protocol for folder in folders if folder.protocol.shard and folder.protocol.shard[1] == of)
        for number in range(1, of + 1):
            shard = like.model_copy(update={"shard": (number, of)})
            if (number, of) not in shards and not held.issuperset(shard.positions()):
                absent.append(f"{number} of {of}")
    return absent


def _trials(trials: list[int]) -> str:
    if len(trials) > 1 and trials == list(range(trials[0], trials[-1] + 1)):
        return f"trials {trials[0]} to {trials[-1]}"
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials))}"
