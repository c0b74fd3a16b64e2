"""Which prompts are hardest, and which changed most. The standard library alone.

Every prompt keeps a few sums for each run, however often it was observed: memory grows with prompts, not with rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, pairwise
from typing import Any

from reroll_records.api import RecordStore
from reroll_records.inspection.tallies import Eras, Tally, chance_of_change, standard_error_of_change
from reroll_records.store.identity import domain as domain_of

FALSE_ALARM = 0.05
"""Chance that any of a store's changes which are said to be beyond noise is none."""


@dataclass(slots=True)
class Observed:
    """What is kept of a prompt.

    Attributes:
        rewards: of all its valid responses.
        lowest, highest: of them.
        runs: run id → its rewards.
        responses: all of them, valid or not; `truncated` of them were cut off.
    """

    place: str
    domain: str
    rewards: Tally = field(default_factory=Tally)
    lowest: float = math.inf
    highest: float = -math.inf
    runs: dict[str, Eras] = field(default_factory=dict)
    groups: int = 0
    responses: int = 0
    truncated: int = 0
    tokens: int = 0

    def add(self, run_id: str, row: dict[str, Any]) -> None:
        self.groups += 1
        for response in row["responses"]:
            self.responses += 1
            self.truncated += response["truncated"]
            self.tokens += response["response_tokens"]
            reward, versions = response["reward"], response["policy_versions"]
            if response["validity"]["valid"] is True and reward is not None:
                self.rewards.add(reward)
                self.lowest, self.highest = min(self.lowest, reward), max(self.highest, reward)
                self.runs.setdefault(run_id, Eras()).add(versions[-1] if versions else 0, reward)


@dataclass(frozen=True, slots=True)
class Hard:
    """A prompt with its mean valid reward.

    Attributes:
        standard_error: of the mean; None below two responses.
        best: the highest valid reward.
        truncated: share of all responses that were cut off.
        mean_tokens: of all responses.
    """

    lineage: str
    input_key: str
    place: str
    domain: str
    runs: int
    valid_responses: int
    mean_reward: float
    standard_error: float | None
    best: float
    truncated: float
    mean_tokens: float


@dataclass(frozen=True, slots=True)
class Change:
    """A prompt's change of the mean valid reward that is least likely to be noise.

    Attributes:
        before, after: what is compared: runs, or early and late weight versions of one run.
        change: mean after less mean before.
        standard_error: of the change, by `standard_error_of_change`.
        chance: of a change as large when nothing changed, by `chance_of_change`.
        beyond_noise: whether a change this large has a chance below `FALSE_ALARM` of standing anywhere in the store
            if no prompt changed.
    """

    lineage: str
    input_key: str
    place: str
    domain: str
    before: str
    after: str
    responses_before: int
    responses_after: int
    mean_before: float
    mean_after: float
    change: float
    standard_error: float
    chance: float
    beyond_noise: bool


@dataclass(frozen=True)
class Ranking:
    """The hardest and the most unstable prompts.

    Attributes:
        prompts: with any group; `enough` of them have enough valid responses for `hardest`.
        comparisons: made for `unstable`, over all prompts.
        unstable: first the changes that are beyond noise, largest first; then those that are the least likely.
    """

    prompts: int
    enough: int
    comparisons: int
    hardest: list[Hard]
    unstable: list[Change]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rank(
    store: RecordStore,
    *,
    lineage: str | None = None,
    domain: str | None = None,
    min_responses: int = 16,
    limit: int = 20,
) -> Ranking:
    """Reads the store once.

    Args:
        lineage, domain: only prompts of this starting checkpoint, or of these verifiers, as `math+format`.
        min_responses: valid ones that a prompt needs for `hardest`; half of it on either side for a change.
        limit: prompts in either list.
    """
    names, observed = _gather(store, lineage, domain)
    compared, changes = _compare(observed, names, max(2, min_responses // 2))
    hard = [_hard(key, prompt) for key, prompt in observed.items() if prompt.rewards.count >= min_responses]
    return Ranking(len(observed), len(hard), compared, _hardest(hard)[:limit], _most_unstable(changes)[:limit])


def _gather(
    store: RecordStore, lineage: str | None, domain: str | None
) -> tuple[dict[str, str], dict[tuple[str, str], Observed]]:
    """Run id → its name; lineage and input key → what was observed."""
    names: dict[str, str] = {}
    observed: dict[tuple[str, str], Observed] = {}
    for attempt, row in store.rows(lineage=lineage):
        if row["kind"] == "group" and domain in (None, domain_of(row["verifiers"])):
            names.setdefault(attempt.run_id, store.run_label(attempt))
            _of(observed, attempt.lineage, row).add(attempt.run_id, row)
    return names, observed


def _compare(
    observed: Mapping[tuple[str, str], Observed], names: Mapping[str, str], least: int
) -> tuple[int, list[Change]]:
    """How many comparisons were made, and each prompt's change that is the least likely to be noise."""
    compared, changes = 0, []
    for key, prompt in observed.items():
        found = list(_changes(key, prompt, names, least))
        compared += len(found)
        if moved := [change for change in found if change.change]:
            changes.append(min(moved, key=lambda change: (change.chance, -abs(change.change))))
    # Bonferroni's inequality: so many comparisons share the chance of a false alarm
    return compared, [replace(change, beyond_noise=change.chance * compared < FALSE_ALARM) for change in changes]


def _hardest(prompts: Iterable[Hard]) -> list[Hard]:
    return sorted(prompts, key=lambda item: (item.mean_reward, -item.valid_responses, item.lineage, item.input_key))


def _most_unstable(changes: Iterable[Change]) -> list[Change]:
    """First those beyond noise, the largest first; then those that are the least likely."""
    return sorted(
        changes,
        key=lambda item: (
            not item.beyond_noise,
            -abs(item.change) if item.beyond_noise else item.chance,
            item.lineage,
            item.input_key,
        ),
    )


def _pairs(runs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """All of few runs. Of many each with the next, and the first with the last: all pairs would take as long as the
    square of their number, and every comparison makes the others less certain."""
    if len(runs) <= RUNS_IN_PAIRS:
        yield from combinations(runs, 2)
    else:
        yield from pairwise(runs)
        yield runs[0], runs[-1]


def _changes(key: tuple[str, str], prompt: Observed, names: Mapping[str, str], least: int) -> Iterator[Change]:
    """Of pairs of runs, in the order in which the store has them, and within every run."""
    whole = {run: eras.whole for run, eras in prompt.runs.items()}
    pairs = [(names[first], names[second], whole[first], whole[second]) for first, second in _pairs(list(whole))]
    pairs += [(f"{names[run]}, early", f"{names[run]}, late", *eras.halves()) for run, eras in prompt.runs.items()]
    for before, after, first, second in pairs:
        if min(first.count, second.count) < least:
            continue
        yield Change(
            *key,
            prompt.place,
            prompt.domain,
            before,
            after,
            first.count,
            second.count,
            first.mean,
            second.mean,
            second.mean - first.mean,
            standard_error_of_change(first, second, prompt.lowest, prompt.highest),
            chance_of_change(first, second, prompt.lowest, prompt.highest),
            False,
        )


def _hard(key: tuple[str, str], prompt: Observed) -> Hard:
    return Hard(
        *key,
        prompt.place,
        prompt.domain,
        len(prompt.runs),
        prompt.rewards.count,
        prompt.rewards.mean,
        prompt.rewards.standard_error,
        prompt.highest,
        prompt.truncated / prompt.responses,
        prompt.tokens / prompt.responses,
    )


def _of(observed: dict[tuple[str, str], Observed], lineage: str, row: dict[str, Any]) -> Observed:
    key = (lineage, row["input_key"])
    found = observed.get(key)
    if found is None:
        place = f"{row['source_dataset']}:{row['source_row']}"
        found = observed[key] = Observed(place, domain_of(row["verifiers"]))
    return found


RUNS_IN_PAIRS = 12
"""Runs of a prompt up to which every one is compared with every other."""
