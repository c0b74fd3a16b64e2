"""Reading back what the cursor and the ledger saved; CheckpointError names the field and the value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from reroll.api import CheckpointError

MOST = 2**62


def check_schema(field: str, state: Mapping[str, Any], schema: int) -> None:
    found = entries(field, state).get("schema")
    if found != schema:
        raise CheckpointError(f"{field}.schema: {found!r}; this version reads {schema}")


def entries(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{field}: {value!r} is no table")
    return value


def number(field: str, value: Any) -> int:
    """A count: a whole number that is not negative, and that something could have counted to."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise CheckpointError(f"{field}: {value!r} is no whole number of at least 0")
    return value


def counts(field: str, value: Any) -> Counter[str]:
    return Counter({key: number(f"{field}.{key}", count) for key, count in entries(field, value).items()})
