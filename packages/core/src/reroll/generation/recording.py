"""Whole tasks for record writers: attempts end one by one, and a record is of a group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from reroll.api import Group, GroupFilter, Trace
from reroll.generation.entries import Entry
from reroll.generation.store import read_trace
from reroll.generation.writing import Finished
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.filters import decide
from reroll.traces.lines import Line


class TaskRecorder:
    """Puts the attempts of each task together and tells the writers of the group, with what the run's group filters
    would have decided about it.

    Args:
        kept: entries of attempts that an earlier start finished, of tasks that it did not: they are read again.
    """

    def __init__(
        self,
        events: GroupEvents,
        filters: list[GroupFilter],
        folder: Path,
        n_trials: int,
        kept: list[Entry],
    ) -> None:
        self._events = events
        self._filters = filters
        self._folder = folder
        self._n_trials = n_trials
        self._kept: dict[int, dict[int, Entry]] = {}
        """Position → trial → the entry that counts."""
        for entry in kept:
            trials = self._kept.setdefault(entry.position, {})
            if entry.trial < n_trials and (entry.trial not in trials or entry.replaces(trials[entry.trial])):
                trials[entry.trial] = entry
        self._open: dict[int, dict[int, tuple[Group, int]]] = {}
        """Position → trial → the group that it was made in, and its place in it."""

    def add(self, group: Group, finished: list[Finished]) -> None:
        """Attempts that are on disk."""
        position = finished[0].entry.position
        here = self._open.setdefault(position, {})
        for index, item in enumerate(finished):
            here[item.entry.trial] = (group, index)
        before = self._kept.get(position, {})
        if len(here.keys() | before.keys()) >= self._n_trials:
            del self._open[position]
            self._kept.pop(position, None)
            self._tell(self._whole(group, here, before.values()))

    def _whole(self, last: Group, here: dict[int, tuple[Group, int]], before: Iterable[Entry]) -> Group:
        members: dict[int, tuple[Trace, int, float | None]] = {
            trial: (group.traces[index], group.seeds[index], group.rewards[index])
            for trial, (group, index) in here.items()
        }
        for entry in before:
            if entry.trial not in members and (record := read_trace(self._folder, entry)) is not None:
                members[entry.trial] = (Line(record).trace(last.task), entry.seed, entry.reward)
        traces, seeds, rewards = zip(*(members[trial] for trial in sorted(members)), strict=True)
        return replace(last, traces=list(traces), seeds=list(seeds), rewards=list(rewards))

    def _tell(self, group: Group) -> None:
        index = self._events.dispatched(group.env_name)
        group = replace(group, group_index=index)
        self._events.scored(group, decide(group, self._filters))
        self._events.left(index, "returned")  # it was not made for training here
