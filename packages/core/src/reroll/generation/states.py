"""How every trial of a folder stands, in one byte each: what is left to do is asked for at every start."""

from __future__ import annotations

from collections.abc import Iterable

from reroll.api import RerollError
from reroll.generation.entries import Entry

MISSING, TRY_AGAIN, ERROR, SKIPPED, FAILED, PASSED = range(6)
"""In the order of `Entry.replaces`; `ERROR` is final."""
NAMES = {ERROR: "error", TRY_AGAIN: "error", FAILED: "failed", PASSED: "passed", SKIPPED: "skipped"}


class TrialStates:
    """The standing of `n_trials` trials of each task, by the task's position.

    Memory does not grow with what is finished.
    """

    def __init__(self, tasks: int, n_trials: int) -> None:
        self.n_trials = n_trials
        try:
            self._states = bytearray(tasks * n_trials)
        except (MemoryError, OverflowError):
            raise RerollError(
                f"generation.n_trials = {n_trials}: {tasks * n_trials:,} trials are more than this machine's memory "
                "holds a byte of each for; give fewer"
            ) from None

    def note(self, entry: Entry) -> bool:
        """Whether the entry changes how its trial stands, or a trial of its task."""
        if not 0 <= entry.position * self.n_trials < len(self._states):
            return False
        if entry.outcome == "skipped":
            first = entry.position * self.n_trials
            before = self._states[first : first + self.n_trials]
            self._states[first : first + self.n_trials] = bytes(max(state, SKIPPED) for state in before)
            return min(before) < SKIPPED
        if not 0 <= entry.trial < self.n_trials:
            return False
        index = entry.position * self.n_trials + entry.trial
        stands, now = self._states[index], code(entry)
        if stands >= FAILED or (stands == SKIPPED and now <= ERROR):
            return False
        self._states[index] = now
        return True

    def missing(self, position: int) -> list[int]:
        """The trials of a task that are not finished."""
        first = position * self.n_trials
        found = self._states[first : first + self.n_trials]
        return [trial for trial, state in enumerate(found) if state <= TRY_AGAIN]

    def count(self, positions: Iterable[int]) -> dict[str, int]:
        """Trials of these tasks by their standing: `passed`, `failed`, `error` (final or not), `skipped`, `missing`
        (never tried), and `left`, those that a start would try."""
        whole = isinstance(positions, range) and len(positions) * self.n_trials == len(self._states)
        found = self._states if whole else bytearray()
        if not whole:
            for position in positions:
                found += self._states[position * self.n_trials : (position + 1) * self.n_trials]
        counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
        for state, name in NAMES.items():
            counts[name] += found.count(state)
        missing = found.count(MISSING)
        return {**counts, "missing": missing, "left": missing + found.count(TRY_AGAIN)}


def code(entry: Entry) -> int:
    """The standing of a trial that has this entry."""
    if entry.outcome == "error":
        return ERROR if entry.final else TRY_AGAIN
    return PASSED if entry.outcome == "passed" else FAILED
