"""Which attempts of a store are pooled: those of one starting checkpoint and one protocol. The standard library
alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reroll_records.store.identity import differences
from reroll_records.store.layout import Attempt, Store, StoreError


def choose(store: Store, lineage: str | None, protocol: str | None) -> dict[int, Attempt]:
    """The attempts of one lineage and one protocol, by their numbers.

    Args:
        lineage, protocol: the beginning of a lineage's id, of a protocol's digest; None for the only one that there is.

    Raises:
        StoreError: nothing matches, or more than one does.
    """
    found = {number: attempt for number, attempt in enumerate(store.attempts) if _has_rows(attempt)}
    if not found:
        raise StoreError(f"{store.root} holds no rows yet: {len(store.attempts)} starts of runs recorded nothing")
    found = _only("lineage", found, lambda attempt: attempt.lineage, lambda item: item.manifest["lineage"], lineage)
    return _only("protocol", found, lambda attempt: attempt.protocol_digest, lambda item: item.protocol, protocol)


def _has_rows(attempt: Attempt) -> bool:
    """A start that was refused, or failed at once, has left a manifest and nothing that could be pooled."""
    return attempt.compacted_path.is_file() or (
        attempt.records_path.is_file() and attempt.records_path.stat().st_size > 0
    )


def _only(
    name: str,
    attempts: Mapping[int, Attempt],
    key: Callable[[Attempt], str],
    record: Callable[[Attempt], Any],
    wanted: str | None,
) -> dict[int, Attempt]:
    """Those with the one key that is there, or begins as `wanted` does; StoreError, saying how they differ, for
    several."""
    there: dict[str, list[Attempt]] = {}
    for attempt in attempts.values():
        there.setdefault(key(attempt), []).append(attempt)
    matching = sorted(value for value in there if value.startswith(wanted or ""))
    if len(matching) == 1:
        return {number: attempt for number, attempt in attempts.items() if key(attempt) == matching[0]}
    if not matching:
        listed = ", ".join(sorted(there))
        raise StoreError(f"--{name} is {wanted!r}, and the store holds none that begins so; there is: {listed}")
    said = "is not given" if wanted is None else f"is {wanted!r}"
    first = record(there[matching[0]][0])
    lines = []
    for value in matching:
        runs = sorted({attempt.run_name for attempt in there[value]})
        other = list(differences(first, record(there[value][0]), "", "{!r}, here {!r}"))
        unlike = f"; unlike the first: {'; '.join(other[:4])}{' …' if len(other) > 4 else ''}" if other else ""
        lines.append(f"{value}  {len(there[value])} attempts of {', '.join(runs[:4])}{unlike}")
    listed = "\n  ".join(lines)
    raise StoreError(
        f"--{name} {said}, and the store holds evidence of several that are never pooled; name one:\n  {listed}"
    )
