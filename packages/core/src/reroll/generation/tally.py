"""What the attempts of each task came to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import fsum, isfinite
from sys import intern
from typing import NamedTuple

from reroll.generation.entries import Entry, Outcome
from reroll.generation.protocol import ResultsError

_CODES: dict[Outcome, int] = {"error": 1, "skipped": 2, "failed": 3, "passed": 4}
_OUTCOMES: dict[int, Outcome] = {code: outcome for outcome, code in _CODES.items()}
_CODE_BITS, _FINAL, _TRUNCATED = 7, 8, 16
"""A state is the code of its outcome, 0 where there is none, and two flags above it."""
_NONE = float("nan")
LARGE = 1e250
"""A reward beyond it may overflow a sum of rewards, of however many attempts."""


class TaskResult(NamedTuple):
    """One task.

    Attributes:
        digest: see `Entry`.
        n_pass, n_fail, n_error: attempts; of a skipped task there are none.
        reward: mean of the judged attempts, None where none was judged; tokens: sampled in all of them.
        truncated: judged attempts that were cut off at a length limit.
        skipped: why it was skipped; None otherwise.
    """

    position: int
    source: str
    source_dataset: str
    source_row: int
    prepared_sample_id: str
    digest: str
    n_pass: int
    n_fail: int
    n_error: int
    reward: float | None
    tokens: int
    truncated: int
    skipped: str | None

    @property
    def n_judged(self) -> int:
        return self.n_pass + self.n_fail

    @property
    def pass_rate(self) -> float | None:
        return self.n_pass / self.n_judged if self.n_judged else None


class Unfinished(NamedTuple):
    """A task of which another start runs attempts.

    Attributes:
        task: its `prepared_sample_id`, None where nothing is known of it yet.
        trials: the attempts that have no entry, or an error that is tried again.
    """

    position: int
    task: str | None
    trials: list[int]


class Tally:
    """The attempts that count, of every task that was asked for.

    Of one attempt there may be several entries, because it was tried again after an error, or because a folder was
    given twice. A judged one counts before an error, the first of two judged ones and the last of two errors.
    It holds some twenty bytes an attempt beside what a task is called.
    """

    def __init__(self, positions: Iterable[int], n_trials: int) -> None:
        """
        Args:
            positions: of the tasks, ascending; entries of others are not counted.
            n_trials: attempts of each; entries beyond are not counted.
        """
        self.n_trials = n_trials
        self.repeated = 0
        """Attempts that were judged, or tasks that were skipped, and met again."""
        self.left_out = 0
        """Entries of other tasks, or beyond `n_trials`."""
        self._slots = {position: slot for slot, position in enumerate(positions)}
        cells = len(self._slots) * n_trials
        self._states = bytearray(cells)
        self._rewards = array("d", bytes(8 * cells))
        self._tokens = array("Q", bytes(8 * cells))
        self._tasks: list[tuple[str, str, int, str, str] | None] = [None] * len(self._slots)
        self._skipped: dict[int, str] = {}

    def __len__(self) -> int:
        """Tasks that were asked for."""
        return len(self._slots)

    def cell(self, entry: Entry) -> int | None:
        """The attempt's number among all that count, in the order of positions and trials; None for others."""
        slot = self._slots.get(entry.position)
        return None if slot is None or not 0 <= entry.trial < self.n_trials else slot * self.n_trials + entry.trial

    def add(self, entry: Entry) -> bool:
        """Whether the entry counts from now on; ResultsError where it is of another task than its position's."""
        cell = self.cell(entry)
        if cell is None:
            self.left_out += 1
            return False
        self._identify(cell // self.n_trials, entry)
        if entry.outcome == "skipped":
            return self._skip(cell // self.n_trials, entry)
        code = _CODES[entry.outcome]
        if self._judged(cell):
            self.repeated += entry.judged
            return False
        try:
            self._tokens[cell] = entry.tokens
        except OverflowError:
            raise ResultsError(f"{_named(entry)}: tokens: {entry.tokens} is no number of tokens") from None
        self._rewards[cell] = _NONE if entry.reward is None else entry.reward
        self._states[cell] = code + _FINAL * entry.final + _TRUNCATED * entry.truncated
        return True

    def add_all(self, entries: Iterable[Entry]) -> Tally:
        for entry in entries:
            self.add(entry)
        return self

    def attempts(self) -> Iterator[tuple[int, int, int]]:
        """Position, trial and cell of all attempts that were asked for, in their order."""
        for position, slot in self._slots.items():
            for trial, cell in enumerate(self._cells(slot)):
                yield position, trial, cell

    def outcome(self, cell: int) -> Outcome | None:
        """What the attempt came to, None where it has no entry."""
        return _OUTCOMES.get(self._states[cell] & _CODE_BITS)

    def truncated(self, cell: int) -> bool:
        return bool(self._states[cell] & _TRUNCATED)

    def tasks(self) -> Iterator[TaskResult]:
        """Every task of which there is an entry, in the order of positions."""
        for position, slot in self._slots.items():
            task = self._tasks[slot]
            if task is not None:
                yield self._result(position, slot, task)

    def unfinished(self) -> Iterator[Unfinished]:
        """The tasks that another start goes on with, in the order of positions."""
        for position, slot in self._slots.items():
            cells = self._cells(slot)
            if slot in self._skipped:
                continue
            trials = [trial for trial, cell in enumerate(cells) if not self._is_finished(cell)]
            if trials:
                task = self._tasks[slot]
                yield Unfinished(position, task and task[3], trials)

    @property
    def missing(self) -> int:
        """Attempts without an entry, of tasks that were not skipped."""
        return self._states.count(0) - sum(self._states.count(0, *self._span(slot)) for slot in self._skipped)

    def _identify(self, slot: int, entry: Entry) -> None:
        known = self._tasks[slot]
        if known is None:
            source, dataset = intern(entry.source), intern(entry.source_dataset)
            self._tasks[slot] = source, dataset, entry.source_row, entry.prepared_sample_id, entry.digest
        elif known != (entry.source, entry.source_dataset, entry.source_row, entry.prepared_sample_id, entry.digest):
            raise ResultsError(
                f"task {entry.position} is row {known[2]} of {known[1]!r}, {known[3]!r}, of source {known[0]!r}, and "
                f"also row {entry.source_row} of {entry.source_dataset!r}, {entry.prepared_sample_id!r}, of source "
                f"{entry.source!r}, or asks something else there: the task sets changed in between; count the results "
                "apart"
            )

    def _skip(self, slot: int, entry: Entry) -> bool:
        if slot in self._skipped:
            self.repeated += 1
            return False
        self._skipped[slot] = entry.detail or "no reason is given"
        return True

    def _result(self, position: int, slot: int, task: tuple[str, str, int, str, str]) -> TaskResult:
        if self._is_skipped(slot):
            return TaskResult(position, *task, 0, 0, 0, None, 0, 0, self._skipped[slot])
        outcomes = [self.outcome(cell) for cell in self._cells(slot)]
        judged = [cell for cell in self._cells(slot) if self._judged(cell)]
        return TaskResult(
            position,
            *task,
            n_pass=outcomes.count("passed"),
            n_fail=outcomes.count("failed"),
            n_error=outcomes.count("error"),
            reward=_mean([reward for cell in judged if (reward := self._rewards[cell]) == reward]),
            tokens=sum(self._tokens[cell] for cell in judged),
            truncated=sum(map(self.truncated, judged)),
            skipped=None,
        )

    def _span(self, slot: int) -> tuple[int, int]:
        return slot * self.n_trials, (slot + 1) * self.n_trials

    def _cells(self, slot: int) -> range:
        return range(*self._span(slot))

    def _judged(self, cell: int) -> bool:
        return self._states[cell] & _CODE_BITS >= _CODES["failed"]

    def _is_finished(self, cell: int) -> bool:
        return self._judged(cell) or bool(self._states[cell] & _FINAL)

    def _is_skipped(self, slot: int) -> bool:
        """What was judged counts before a skip."""
        return slot in self._skipped and not any(map(self._judged, self._cells(slot)))


def _mean(values: list[float]) -> float | None:
    """To the last bit the same whatever order the values come in."""
    if not values:
        return None
    if not all(map(isfinite, values)):
        return sum(values) / len(values)
    if max(map(abs, values)) > LARGE:  # the sum may be no float even where the mean is one
        return float(sum(map(Fraction, values), Fraction(0)) / len(values))
    return fsum(values) / len(values)


def _named(entry: Entry) -> str:
    return f"task {entry.position} ({entry.prepared_sample_id}), trial {entry.trial}"
