"""What tests have called in processes of their own, which import it by its name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from reroll_records.aggregation.spilling import Item, Key
from reroll_records.store.layout import StoreError


class Lengths:
    """Counts dispositions by the length of their ids, and notes which attempts it was given whole."""

    def __init__(self, weight: int) -> None:
        self.size = 0
        self._weight = weight
        self._table: Counter[Key] = Counter()

    def add(self, attempt: int, row: Mapping[str, Any]) -> None:
        self._table["length", len(row["observation_id"])] += 1
        self.size += self._weight

    def close(self, attempt: int) -> None:
        self._table["closed", attempt] += 1

    def take(self) -> list[Item]:
        items = list(self._table.items())
        self._table.clear()
        self.size = 0
        return items


def add(key: Key, first: Any, second: Any) -> Any:
    return first + second


def fail(number: int) -> int:
    if number == 3:
        raise StoreError("the third is broken")
    return number


def exit_at_once(number: int) -> None:
    os._exit(number)
