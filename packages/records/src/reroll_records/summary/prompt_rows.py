"""Rows of `prompts.jsonl`, from what was kept of each prompt. The standard library alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any

from reroll_records.aggregation.spilling import Key, SortedFile, merged
from reroll_records.aggregation.statistics import moments
from reroll_records.store.layout import Store
from reroll_records.store.rows import DECISIONS, OUTCOMES
from reroll_records.summary import totals

_CACHED_VALUES = 16
"""A histogram of at most so many values is likely to come again."""
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass
class Written:
    """What a range of keys came to beside its rows.

    Attributes:
        tokens: (domain, disposition) → groups, responses, tokens, truncated responses, truncated tokens.
        domains: domain → rows of `prompts.jsonl`, then groups by outcome; a group with responses of two scopes is in
            two rows.
        orphans: attempt → disposition rows without a group that passed.
    """

    rows: int = 0
    tokens: dict[tuple[tuple[str, ...], str], list[int]] = field(default_factory=dict)
    domains: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    orphans: Counter[int] = field(default_factory=Counter)

    def add(self, key: Key, value: Any) -> None:
        """A result that is no prompt's."""
        if key[0] == "observation":
            for each, counts in totals.resolved(key[1], value):
                self.add(each, counts)
        elif key[0] == "orphans":
            self.orphans[key[1]] += value
        else:
            known = self.tokens.setdefault((key[1], key[2]), [0] * len(value))
            for position, count in enumerate(value):
                known[position] += count

    def count(self, domain: tuple[str, ...], numbers: Sequence[int]) -> None:
        """Rows and outcomes of a domain."""
        known = self.domains.setdefault(domain, [0] * len(numbers))
        for position, number in enumerate(numbers):
            known[position] += number

    def update(self, other: Written) -> None:
        self.rows += other.rows
        self.orphans.update(other.orphans)
        for domain, numbers in other.domains.items():
            self.count(domain, numbers)
        for (domain, disposition), counts in other.tokens.items():
            self.add(("tokens", domain, disposition), counts)


def write_rows(
    files: Sequence[SortedFile], low: Key | None, high: Key | None, run_numbers: Sequence[int], path: Path
) -> Written:
    """Rows of the prompts in a range of keys, into `path`; of other keys in it what they come to.

    Args:
        run_numbers: attempt → a number that attempts of one run share.
    """
    written = Written()
    units = Units(run_numbers)
    with path.open("w", encoding="utf-8") as file:
        for key, value in merged(files, totals.merge, low, high):
            if key[0] != "prompt":
                written.add(key, value)
                continue
            file.write(line(key, value, units.count(key[3], value[totals.UNITS])))
            written.rows += 1
            domain = value[totals.IDENTITY][totals.DOMAIN]
            written.count(domain, [1, *value[totals.FIRST_OUTCOME : totals.FIRST_DECISION]])
    return written


def run_numbers(store: Store) -> list[int]:
    """Attempt → a number that attempts of one run share."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(attempt.run_id, len(numbers)) for attempt in store.attempts]


class Units:
    """Counts independent draws: attempts of the starting checkpoint, which all sample one policy; runs otherwise, as
    what one trajectory gives is correlated."""

    def __init__(self, run_numbers: Sequence[int]) -> None:
        self._runs = run_numbers
        self._count_runs = lru_cache(4096)(self._distinct_runs)

    def count(self, scope: str, attempts: int) -> int:
        """Of the attempts whose bits are set."""
        return attempts.bit_count() if scope == "start_checkpoint" else self._count_runs(attempts)

    def _distinct_runs(self, attempts: int) -> int:
        return len({number for attempt, number in enumerate(self._runs) if attempts >> attempt & 1})


def _counts(names: Sequence[str]) -> str:
    return "{" + ",".join(f'"{name}":%d' for name in names) + "}"


_ROW = (
    '{"lineage":%s,"input_key":%s,"policy_scope":%s,"task_key":%s,"query_sha256":%s,"prompt_token_sha256":%s,'
    '"protocol_digest":%s,"verifiers":%s,"source_dataset":%s,"source_row":%d,"prepared_sample_id":%s,'
    f'"groups":{_counts(OUTCOMES)},"filter_decisions":{_counts(DECISIONS)},'
    '"validity":{"valid":%d,"invalid":%d,"unknown":%d},"responses":%d,"response_tokens":%d,"truncated_responses":%d,'
    '"independent_units":%d,"valid_reward":%s,"unknown_validity_reward":%s}\n'
)
_texts = lru_cache(1 << 10)(_encode)


def line(key: Key, value: Sequence[Any], units: int) -> str:
    """A row of `prompts.jsonl`, with its newline."""
    _, lineage, input_key, scope = key
    task_key, query, tokens, protocol, verifiers, dataset, row, sample = value[totals.IDENTITY]
    return _ROW % (
        _texts(lineage),
        _quoted(input_key),
        _texts(scope or None),
        _quoted(task_key),
        _quoted(query),
        _quoted(tokens),
        _texts(protocol),
        _texts(verifiers),
        _texts(dataset),
        row,
        _quoted(sample),
        *value[totals.FIRST_OUTCOME : totals.VALID_REWARDS],
        units,
        rewards(value[totals.VALID_REWARDS]),
        rewards(value[totals.UNKNOWN_REWARDS]),
    )


def rewards(histogram: Mapping[float, int]) -> str:
    """JSON of `count`, `mean`, sample `variance`, `min`, `max` and the exact-value histogram, ascending. What there is
    not is null, and so is a variance above the largest double."""
    values = tuple(sorted(histogram.items()))
    return _cached_rewards(values) if len(values) <= _CACHED_VALUES else _rewards(values)


def _rewards(values: tuple[tuple[float, int], ...]) -> str:
    found = moments(dict(values))
    variance = None if found.variance is None or math.isinf(found.variance) else found.variance
    return _encode(
        {
            "count": found.count,
            "mean": found.mean,
            "variance": variance,
            "min": found.minimum,
            "max": found.maximum,
            "histogram": [{"value": value, "count": count} for value, count in values],
        }
    )


_cached_rewards = lru_cache(1 << 14)(_rewards)
