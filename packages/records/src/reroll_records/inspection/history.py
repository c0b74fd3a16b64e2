"""One prompt's history over runs and weight versions. The standard library alone."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from reroll_records.aggregation.statistics import moments, upper_bound
from reroll_records.store.layout import Attempt
from reroll_records.store.rows import GroupRow, ResponseRow

CONFIDENCE = 0.95
"""Of the one-sided bound on the rate of rewards other than the most common one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a prompt is known by; `lineage` and `input_key` tell it from every other."""

    lineage: str
    input_key: str
    task_key: str
    query_sha256: str
    protocol: str
    source_dataset: str
    source_row: int
    prepared_sample_id: str
    domain: str

    @property
    def place(self) -> str:
        return f"{self.source_dataset}:{self.source_row}"


@dataclass
class Cell:
    """What one run recorded of the prompt by the same weight versions.

    Attributes:
        run, run_id, source: of the run; its name, with the beginning of its id where several have that name.
        started: when the run's first attempt among these began, in seconds since the epoch.
        first_version, last_version: weight versions that sampled tokens of a group; None where nothing was sampled.
        outcomes: of groups.
        rewards: of valid responses, value → how often.
        validity: `valid`, `invalid`, `unknown` → responses.
        tokens: sampled, of all responses; `fewest` and `most` of one.
        truncated: responses that were cut off at a length limit.
        dispositions: of groups: `consumed`, `expired`, `unused`, `filtered:<reason>` or `aborted`.
        staleness: optimizer steps → groups that were consumed or expired with it.
        first_time, last_time: when groups were scored, in seconds since the epoch.
    """

    run: str
    run_id: str
    source: str
    started: float
    first_version: int | None
    last_version: int | None
    groups: int = 0
    responses: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: Counter[float] = field(default_factory=Counter)
    validity: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    fewest: int | None = None
    most: int | None = None
    truncated: int = 0
    dispositions: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    first_time: float = float("inf")
    last_time: float = float("-inf")

    @property
    def mean_reward(self) -> float | None:
        return moments(self.rewards).mean

    @property
    def mean_tokens(self) -> float | None:
        return self.tokens / self.responses if self.responses else None

    def add(self, group: GroupRow) -> None:
        self.groups += 1
        self.outcomes[group.outcome] += 1
        self.first_time, self.last_time = min(self.first_time, group.time), max(self.last_time, group.time)
        for response in group.responses:
            self.responses += 1
            self.validity[_validity(response)] += 1
            if response.validity.valid is True and response.reward is not None:
                self.rewards[float(response.reward)] += 1
            self.tokens += response.response_tokens
            tokens = response.response_tokens
            self.fewest = tokens if self.fewest is None else min(self.fewest, tokens)
            self.most = tokens if self.most is None else max(self.most, tokens)
            self.truncated += response.truncated


@dataclass
class Pool:
    """Valid rewards of the prompt within one policy scope, over runs. With deterministic inference a sampling seed
    counts once for each reward that it gave under one policy: to draw it again is no further evidence.

    Attributes:
        rewards: value → how many draws gave it.
    """

    rewards: Counter[float] = field(default_factory=Counter)
    _seen: set[tuple[Any, ...]] = field(default_factory=set, repr=False)

    def add(self, attempt: Attempt, response: ResponseRow) -> None:
        assert response.reward is not None
        reward = float(response.reward)
        if attempt.deterministic:
            seed = attempt.rollout_seed + response.index if response.seed is None else response.seed
            policy = () if response.policy_scope == "start_checkpoint" else (attempt.run_id, *response.policy_versions)
            if (drawn := (seed, reward, policy)) in self._seen:
                return
            self._seen.add(drawn)
        self.rewards[reward] += 1

    @property
    def draws(self) -> int:
        return self.rewards.total()

    @property
    def commonest(self) -> float:
        """The smallest of the most common rewards."""
        return min(self.rewards, key=lambda value: (-self.rewards[value], value))

    @property
    def others(self) -> int:
        """Draws with any other reward."""
        return self.draws - self.rewards[self.commonest]

    @property
    def bound(self) -> float:
        """One-sided upper confidence bound on the rate of other rewards."""
        return upper_bound(self.others, self.draws, CONFIDENCE)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response whose text was kept."""

    reward: float
    valid: bool | None
    run: str
    policy_versions: list[int]
    response_tokens: int
    status: str
    text: str


class Shelf:
    """The worst and the best of the kept responses, no more of them than are to be shown."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._seen = 0
        self._worst: list[tuple[float, int, KeptResponse]] = []
        self._best: list[tuple[float, int, KeptResponse]] = []

    def add(self, run: str, response: ResponseRow) -> None:
        if response.response is None or response.reward is None or not self._number:
            return
        self._seen += 1
        kept = KeptResponse(
            float(response.reward),
            response.validity.valid,
            run,
            response.policy_versions,
            response.response_tokens,
            response.status,
            response.response,
        )
        for heap, sign in ((self._worst, -1), (self._best, 1)):
            heapq.heappush(heap, (sign * kept.reward, -self._seen, kept))
            if len(heap) > self._number:
                heapq.heappop(heap)

    def shown(self) -> list[KeptResponse]:
        """The worst, the best, the second worst, the second best and so on; of equal ones the earliest."""
        worst = sorted(self._worst, key=lambda item: (-item[0], -item[1]))
        best = sorted(self._best, key=lambda item: (-item[0], -item[1]))
        found: dict[int, KeptResponse] = {}
        for pair in zip(worst, best, strict=True):
            for _, number, kept in pair:
                found.setdefault(number, kept)
        return list(found.values())[: self._number]


@dataclass
class History:
    """Everything that a store says of one prompt.

    Attributes:
        cells: of runs, in the order in which they began, and of weight versions.
        pools: policy scope → its valid rewards.
        text: the rendered prompt, where one was kept.
    """

    prompt: Prompt
    cells: list[Cell]
    pools: dict[str, Pool]
    responses: list[KeptResponse]
    text: str | None

    def to_json(self) -> dict[str, Any]:
        """Of JSON's types. Rewards are lists of value and number, as JSON has no numbers for keys."""
        return {
            "prompt": asdict(self.prompt),
            "cells": [_cell_json(cell) for cell in self.cells],
            "pools": {
                scope: {
                    "draws": pool.draws,
                    "mean": moments(pool.rewards).mean,
                    "rewards": sorted(pool.rewards.items()),
                    "commonest": pool.commonest,
                    "others": pool.others,
                    "others_rate_upper_bound": pool.bound,
                    "confidence": CONFIDENCE,
                }
                for scope, pool in self.pools.items()
            },
            "text": self.text,
            "responses": [asdict(response) for response in self.responses],
        }


def _cell_json(cell: Cell) -> dict[str, Any]:
    found = {item.name: getattr(cell, item.name) for item in fields(cell)}
    found |= {"rewards": sorted(cell.rewards.items()), "staleness": sorted(cell.staleness.items())}
    return found | {"mean_reward": cell.mean_reward, "mean_tokens": cell.mean_tokens}


def _validity(response: ResponseRow) -> str:
    return {True: "valid", False: "invalid", None: "unknown"}[response.validity.valid]
