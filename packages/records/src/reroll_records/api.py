"""Records for programs: `reroll_records.open(store)`. Reads JSON lines with the standard library alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from reroll_records.store.attempt_rows import AttemptRows
from reroll_records.store.layout import Attempt, Store, scan
from reroll_records.store.rows import SCOPES, DispositionRow, GroupRow, PolicyScope, ResponseRow
from reroll_records.store.sources import Snapshot, snapshot

ANY: Literal["any"] = "any"


class RecordStore:
    """Rows of a store, of one lineage or of one run, read anew by each iteration: memory does not grow with them.

    A store may grow meanwhile, and attempts that begin after `open` are not seen. What cannot be read is skipped, and
    told in `warnings`.

    Attributes:
        attempts: every start of a run that has a usable manifest, in the order of folders and ids; manifests give
            lineage, protocol, seeds and settings.
    """

    def __init__(self, store: Store) -> None:
        self.attempts: list[Attempt] = store.attempts
        self._store = store
        self._snapshot = snapshot(store)
        self._unreadable: dict[str, int] = {}
        self._named: dict[str, set[str]] = {}
        for attempt in store.attempts:
            self._named.setdefault(attempt.run_name, set()).add(attempt.run_id)

    @property
    def root(self) -> Path:
        """The folder that was opened."""
        return self._store.root

    @property
    def warnings(self) -> list[str]:
        """Sentences: what was wrong with manifests and files when the last iteration began, or else when the store was
        opened, and how many lines of which file iterations have found to be no rows."""
        told = [
            f"{name}: {count} lines are no rows of this schema and are counted nowhere"
            for name, count in self._unreadable.items()
        ]
        return [*self._snapshot.warnings, *told]

    def run_label(self, attempt: Attempt) -> str:
        """The name of an attempt's run, with the beginning of its id where several runs have that name."""
        ids = self._named[attempt.run_name]
        if len(ids) == 1:
            return attempt.run_name
        digits = 6
        while len({run_id[:digits] for run_id in ids}) < len(ids):
            digits += 1
        return f"{attempt.run_name}-{attempt.run_id[:digits]}"

    def groups(
        self,
        *,
        lineage: str | None = None,
        protocol: str | None = None,
        run: str | None = None,
        input_key: str | None = None,
    ) -> Iterator[tuple[Attempt, GroupRow]]:
        """Scored groups, with the attempt that recorded each, in the order in which an attempt wrote them.

        Args:
            lineage: only of this starting checkpoint: 16 hexadecimal digits.
            protocol: only under the protocol of this digest: 64 hexadecimal digits.
            run: only of the run of this id or name.
            input_key: only of this prompt: 64 hexadecimal digits. Pool observations within one key, one lineage and
                one policy scope only.

        Raises:
            StoreError: only Parquet is left of an attempt, and DuckDB is not installed or cannot read it.
        """
        for attempt, row in self.rows(lineage=lineage, protocol=protocol, run=run):
            if row["kind"] == "group" and (input_key is None or row["input_key"] == input_key):
                yield attempt, GroupRow.from_json(row)

    def dispositions(
        self, *, lineage: str | None = None, protocol: str | None = None, run: str | None = None
    ) -> Iterator[tuple[Attempt, DispositionRow]]:
        """How groups that passed the filter left the buffer; `observation_id` links each to its group of the same
        attempt, which may stand after it. Staleness is in optimizer steps. Arguments and errors are those of
        `groups`."""
        for attempt, row in self.rows(lineage=lineage, protocol=protocol, run=run):
            if row["kind"] == "disposition":
                yield attempt, DispositionRow.from_json(row)

    def responses(
        self,
        *,
        scope: PolicyScope | Literal["any"] | None = ANY,
        valid: bool | Literal["any"] | None = ANY,
        lineage: str | None = None,
        protocol: str | None = None,
        run: str | None = None,
        input_key: str | None = None,
    ) -> Iterator[tuple[Attempt, GroupRow, ResponseRow]]:
        """Responses, each with its group and the attempt that recorded it.

        Args:
            scope: `start_checkpoint` (by the starting checkpoint alone, which pools over runs of one lineage and
                protocol), `run_version` (by one later version of one run), `mixed` (across versions), None (nothing
                was sampled), or `any`.
            valid: True (every verifier vouches for its score: only these rewards are evidence), False (one failed),
                None (one is unknown, none failed), or `any`.

        The other arguments and the errors are those of `groups`.

        Raises:
            ValueError: there is no such scope or validity.
        """
        if scope not in (ANY, None, *SCOPES):
            raise ValueError(f"scope = {scope!r} must be {', '.join(map(repr, SCOPES))}, None or 'any'")
        if not any(valid is known for known in (True, False, None)) and valid != ANY:
            raise ValueError(f"valid = {valid!r} must be True, False, None or 'any'")
        return self._responses(
            scope, valid, self.groups(lineage=lineage, protocol=protocol, run=run, input_key=input_key)
        )

    def _responses(
        self, scope: Any, valid: Any, groups: Iterator[tuple[Attempt, GroupRow]]
    ) -> Iterator[tuple[Attempt, GroupRow, ResponseRow]]:
        for attempt, group in groups:
            for response in group.responses:
                if scope in (ANY, response.policy_scope) and valid in (ANY, response.validity.valid):
                    yield attempt, group, response

    def rows(
        self,
        *,
        lineage: str | None = None,
        protocol: str | None = None,
        run: str | None = None,
        attempts: list[Attempt] | None = None,
        as_of: Snapshot | None = None,
    ) -> Iterator[tuple[Attempt, dict[str, Any]]]:
        """Rows of both kinds as they were written: decoded JSON with `kind` `group` or `disposition`.

        Args:
            attempts: only of these.
            as_of: as the store was then, see `moment`; None for as it is now.

        The other arguments and the errors are those of `groups`.
        """
        wanted = None if attempts is None else {attempt.id for attempt in attempts}
        self._snapshot = as_of or snapshot(self._store)
        for source in self._snapshot.sources:
            attempt = self.attempts[source.attempt]
            if wanted is not None and attempt.id not in wanted:
                continue
            if lineage not in (None, attempt.lineage) or protocol not in (None, attempt.protocol_digest):
                continue
            if run not in (None, attempt.run_id, attempt.run_name):
                continue
            found = AttemptRows(source)
            for row in found:
                yield attempt, row
            if found.unreadable:
                self._unreadable[source.name] = found.unreadable

    def moment(self) -> Snapshot:
        """The store's files as they are now, for iterations that are to see the same rows while it grows."""
        return snapshot(self._store)


def open_store(path: str | os.PathLike[str]) -> RecordStore:
    """The records under a path; no rows are read yet.

    Args:
        path: the root of a store, the folder of one lineage, or that of one run.

    Raises:
        StoreError: nothing that a writer left is there.
    """
    return RecordStore(scan(Path(path)))
