"""Finds the prompts that a text names, and gathers the history of one. The standard library alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reroll_records.api import RecordStore
from reroll_records.inspection.history import Cell, History, Pool, Prompt, Shelf
from reroll_records.store.identity import domain
from reroll_records.store.layout import Attempt, StoreError
from reroll_records.store.rows import GroupRow, left_as

_KEYS = ("input_key", "task_key", "query_sha256")


@dataclass
class Found:
    """What a search found.

    Attributes:
        matches: prompts, and how many groups each has.
        history: of the one that matched; None if none or several did.
    """

    matches: dict[Prompt, int]
    history: History | None


class _Gathering:
    """A history in the making. It holds the ids of the prompt's groups that passed the filter until their
    dispositions are known."""

    def __init__(self, store: RecordStore, prompt: Prompt, keep: int) -> None:
        self.prompt = prompt
        self._store = store
        self._attempts: dict[str, Attempt] = {}
        self._passed: dict[tuple[str, str], list[Cell]] = {}
        self._cells: dict[tuple[str, int | None, int | None], Cell] = {}
        self._pools: dict[str, Pool] = {}
        self._shelf = Shelf(keep)
        self._text: str | None = None

    def add(self, attempt: Attempt, group: GroupRow) -> None:
        self._attempts[attempt.id] = attempt
        self._text = self._text if group.prompt is None else group.prompt
        versions = [version for response in group.responses for version in response.policy_versions]
        span = (min(versions), max(versions)) if versions else (None, None)
        cell = self._cells.get((attempt.run_id, *span))
        if cell is None:
            cell = Cell(self._store.run_label(attempt), attempt.run_id, attempt.source, attempt.started, *span)
            self._cells[attempt.run_id, *span] = cell
        cell.add(group)
        if group.filter_decision == "passed":
            self._passed.setdefault((attempt.id, group.observation_id), []).append(cell)
        else:
            cell.dispositions[left_as(group.filter_decision, group.filter_reason)] += 1
        for response in group.responses:
            self._shelf.add(self._store.run_label(attempt), response)
            if response.validity.valid is True and response.reward is not None and response.policy_scope:
                self._pools.setdefault(response.policy_scope, Pool()).add(attempt, response)

    def finish(self) -> History:
        """Looks up what became of the groups that passed; what nothing is said of was still queued."""
        said: dict[tuple[str, str], tuple[str, int]] = {}
        for attempt, row in self._store.rows(attempts=list(self._attempts.values())) if self._passed else ():
            key = (attempt.id, row["observation_id"])
            if row["kind"] == "disposition" and key in self._passed:
                known = said.get(key)
                if known is None or row["disposition"] < known[0]:  # which prevails, see `rows.DispositionRow`
                    said[key] = (row["disposition"], row["staleness"])
        for key, cells in self._passed.items():
            disposition, staleness = said.get(key, (None, None))
            for cell in cells:
                cell.dispositions[left_as("passed", "", disposition)] += 1
                if staleness is not None:
                    cell.staleness[staleness] += 1
        began: dict[str, float] = {}
        for cell in self._cells.values():
            began[cell.run_id] = min(began.get(cell.run_id, cell.started), cell.started)
        ordered = sorted(
            self._cells.values(),
            key=lambda cell: (began[cell.run_id], cell.run_id, _order(cell.last_version), _order(cell.first_version)),
        )
        return History(self.prompt, ordered, dict(sorted(self._pools.items())), self._shelf.shown(), self._text)


def find(store: RecordStore, text: str, *, lineage: str | None = None, keep: int = 0) -> Found:
    """The prompts that `text` names, and the history of the one prompt if there is just one.

    Args:
        text: the beginning of an input key, a task key or a query hash; or `source_dataset:row`; or a prepared sample
            id.
        lineage: only under this starting checkpoint.
        keep: how many responses the history has.

    Raises:
        StoreError: `text` is empty, which would be the beginning of every key; or only Parquet is left of an attempt,
            and it cannot be read.
    """
    if not text:
        raise StoreError("the prompt is empty: give the beginning of a key, source_dataset:row or a sample id")
    prompts: dict[tuple[str, str], Prompt] = {}
    groups: Counter[tuple[str, str]] = Counter()
    gathering: _Gathering | None = None
    for attempt, row in _named(store, text, lineage):
        key = (attempt.lineage, row["input_key"])
        # places change when a data set is prepared again, and do not make another prompt: the first one is told
        prompt = prompts.get(key) or prompts.setdefault(key, _prompt(attempt, row))
        groups[key] += 1
        if len(prompts) > 1:
            gathering = None
            continue
        gathering = gathering or _Gathering(store, prompt, keep)
        gathering.add(attempt, GroupRow.from_json(row))
    matches = {prompt: groups[key] for key, prompt in prompts.items()}
    return Found(matches, gathering.finish() if gathering else None)


def _named(store: RecordStore, text: str, lineage: str | None) -> Iterator[tuple[Attempt, dict[str, Any]]]:
    for attempt, row in store.rows(lineage=lineage):
        if row["kind"] == "group" and (
            any(row[name].startswith(text) for name in _KEYS)
            or text in (row["prepared_sample_id"], f"{row['source_dataset']}:{row['source_row']}")
        ):
            yield attempt, row


def _prompt(attempt: Attempt, row: dict[str, Any]) -> Prompt:
    named = {name: row[name] for name in (*_KEYS, "source_dataset", "source_row", "prepared_sample_id")}
    return Prompt(lineage=attempt.lineage, protocol=attempt.protocol_digest, domain=domain(row["verifiers"]), **named)


def _order(version: int | None) -> float:
    return float("-inf") if version is None else version
