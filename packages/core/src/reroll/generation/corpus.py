"""The corpus: conversations of attempts, for supervised training."""

from __future__ import annotations

import hashlib
import json
import tomllib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reroll.api import Message, counted, one_line
from reroll.generation.corpus_files import Row, writing
from reroll.generation.entries import Outcome, Place, entry_from
from reroll.generation.merging import Folder, Warn
from reroll.generation.protocol import ResultsError
from reroll.generation.store import JOURNAL, trace_at, traces_path
from reroll.generation.tally import Tally
from reroll.reporting.config import RUN_FILE

OUTCOMES: dict[str, frozenset[Outcome]] = {
    "passed": frozenset({"passed"}),
    "failed": frozenset({"failed"}),
    "judged": frozenset({"passed", "failed"}),
}


@dataclass(frozen=True)
class Choice:
    """Which conversations are taken.

    Attributes:
        outcome: one of `OUTCOMES`.
        keep_truncated: also answers that were cut off at a length limit.
        deduplicate: of equal conversations of a task the first alone.
        most_per_task: None for all.
    """

    outcome: str = "passed"
    keep_truncated: bool = False
    deduplicate: bool = False
    most_per_task: int | None = None


@dataclass
class Exported:
    """What was written, and what was not.

    Attributes:
        removed: traces that were taken out of the results; unreadable: that are damaged; first: what is wrong with the
            first of them.
    """

    conversations: int = 0
    tasks: int = 0
    truncated: int = 0
    begun_again: int = 0
    repeated: int = 0
    removed: int = 0
    unreadable: int = 0
    first: str = ""

    def lines(self) -> Iterator[str]:
        """What was left out and should be known."""
        if self.truncated:
            yield f"{counted(self.truncated, 'truncated answer')} left out (--keep-truncated takes them)"
        if self.begun_again:
            yield (
                f"{counted(self.begun_again, 'conversation')} began again from a summary (harness option compact_at): "
                "what was said before it is not in the file"
            )
        if self.repeated:
            yield f"{counted(self.repeated, 'repeated conversation')} left out"
        if self.removed:
            yield f"{counted(self.removed, 'attempt')} left out: the traces were removed"
        if self.unreadable:
            yield f"{counted(self.unreadable, 'trace')} left out that cannot be read, first {self.first}"


class Places:
    """Where the traces of attempts are that count, in some twenty bytes each; in the layout `tree` as text."""

    def __init__(self, cells: int) -> None:
        self._folders = array("I", bytes(4 * cells))
        self._offsets = array("q", [-1]) * cells
        self._lengths = array("Q", bytes(8 * cells))
        self._named: dict[int, str] = {}

    def put(self, cell: int, folder: int, place: Place | None) -> None:
        self._folders[cell] = folder
        self._offsets[cell], self._lengths[cell] = place if isinstance(place, tuple) else (-1, 0)
        self._named.pop(cell, None)
        if isinstance(place, str):
            self._named[cell] = place

    def get(self, cell: int) -> tuple[int, Place] | None:
        place = self._named.get(cell)
        if place is not None:
            return self._folders[cell], place
        return (self._folders[cell], (self._offsets[cell], self._lengths[cell])) if self._offsets[cell] >= 0 else None


def export(folders: Sequence[Folder], output: Path, choice: Choice, warn: Warn) -> Exported:
    """Writes the conversations by position and trial, one at a time: memory does not grow with the corpus."""
    for folder in folders:
        for source in (traces_path(folder.path), folder.path / JOURNAL):
            if output.resolve() == source.resolve():
                raise ResultsError(f"{output} is a file of the results themselves; give another one")
    done = Exported()
    with writing(output) as write:
        for row in conversations(folders, choice, done, warn):
            write(row)
    return done


def conversations(folders: Sequence[Folder], choice: Choice, done: Exported, warn: Warn) -> Iterator[Row]:
    """The rows that are taken, counted in `done`."""
    tally, places = _placed(folders, warn)
    models = [_model(folder.path, warn) for folder in folders]
    wanted = OUTCOMES[choice.outcome]
    task, taken = -1, 0
    seen: set[bytes] = set()
    for position, trial, cell in tally.attempts():
        if position != task:
            task, taken, seen = position, 0, set()
        if tally.outcome(cell) not in wanted or taken == choice.most_per_task:
            continue
        if tally.truncated(cell) and not choice.keep_truncated:
            done.truncated += 1
            continue
        found = places.get(cell)
        if found is None:
            done.removed += 1
            continue
        number, place = found
        folder = folders[number]
        try:
            row = _row(folder, position, trial, place, models[number])
        except ResultsError as error:
            done.unreadable += 1
            done.first = done.first or str(error)
            continue
        if choice.deduplicate:
            digest = _digest(row["messages"])
            if digest in seen:
                done.repeated += 1
                continue
            seen.add(digest)
        done.begun_again += row.pop("begun_again")
        done.tasks += taken == 0
        done.conversations += 1
        taken += 1
        yield row


def _placed(folders: Sequence[Folder], warn: Warn) -> tuple[Tally, Places]:
    """What counts, as a merge counts it, and where its traces are."""
    protocol = folders[0].protocol
    tally = Tally(sorted({position for item in folders for position in item.protocol.positions()}), protocol.n_trials)
    places = Places(len(tally) * protocol.n_trials)
    for number, folder in enumerate(folders):
        for entry in folder.entries(warn):
            counts = tally.add(entry)
            cell = tally.cell(entry)
            if cell is None or not entry.judged:
                continue
            # A trace that was met without its entry, after a clean-up that was broken off, has an entry of its own.
            if counts or (tally.outcome(cell) == entry.outcome and places.get(cell) is None):
                places.put(cell, number, entry.place)
    return tally, places


def _row(folder: Folder, position: int, trial: int, place: Place, model: str | None) -> Row:
    name = f"task {position}, trial {trial}"
    where = f"{folder.path}: the trace of {name}"
    found = trace_at(folder.path, place, name)
    try:
        entry = entry_from(found["info"]["reroll"]["generation"])
        messages, tools = _conversation(found["nodes"]), found["task"]["tools"]
    except (ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"{where}: {type(error).__name__}: {one_line(str(error))}") from None
    if (entry.position, entry.trial) != (position, trial):
        raise ResultsError(
            f"{where} is that of task {entry.position}, trial {entry.trial}: {JOURNAL} does not fit the traces"
        )
    return {
        "messages": messages,
        "tools": tools,
        "source_dataset": entry.source_dataset,
        "source_row": entry.source_row,
        "prepared_sample_id": entry.prepared_sample_id,
        "trial": entry.trial,
        "reward": entry.reward,
        "tokens": entry.tokens,
        "model": model,
        "run": folder.protocol.name,
        "begun_again": any(node.get("origin") == "compaction" for node in found["nodes"]),
    }


def _conversation(nodes: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of the last branch, as `Trace.messages` gives them."""
    path: list[Message] = []
    index: int | None = len(nodes) - 1
    while index is not None:
        node = nodes[index]
        message, parent = node["message"], node["parent"]
        if not isinstance(message, dict) or not (parent is None or (type(parent) is int and 0 <= parent < index)):
            raise ValueError(f"nodes[{index}] is no node with a message and a parent before it")
        path.append(message)
        index = parent
    return path[::-1]


def _model(folder: Path, warn: Warn) -> str | None:
    """The model as the run file names it."""
    path = folder / RUN_FILE
    try:
        name = tomllib.loads(path.read_text("utf-8"))["model"]["path"]
    except (OSError, ValueError, KeyError, TypeError):
        warn(f"{path} does not say the model's path: the conversations of {folder} are written without it")
        return None
    return str(name)


def _digest(messages: list[Message]) -> bytes:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).digest()
