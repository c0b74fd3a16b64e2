"""What a store knows of each prompt: valid responses, how many of them are evidence of their own, and from how many
independent looks. The standard library alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reroll_records.aggregation.aggregate import aggregate, parts
from reroll_records.aggregation.spilling import Item, Key, SortedFile, SortedWriter, few, merged, sort
from reroll_records.store.attempt_rows import AttemptRows
from reroll_records.store.layout import Attempt
from reroll_records.store.rows import PolicyScope
from reroll_records.store.sources import Source


@dataclass
class Evidence:
    """What is known of one prompt from valid responses within the rule's scopes; see `Rule`.

    Attributes:
        rewards: value → how often.
        draws: responses that are evidence of their own.
        start_attempts, later_attempts: numbers of attempts that hold such responses, of the starting checkpoint and of
            later versions.
    """

    rewards: Mapping[float, int]
    draws: int
    start_attempts: frozenset[int]
    later_attempts: frozenset[int]
    verifiers: tuple[str, ...]
    place: tuple[str, int, str]

    def units(self, attempts: Sequence[Attempt], deterministic: bool) -> int:
        """Independent looks at the prompt: attempts from the starting checkpoint, with deterministic inference those of
        different rollout seeds; and runs, for what later versions gave, unless the run counts by an attempt already."""
        started = [attempts[number] for number in self.start_attempts]
        looks: set[Any] = {attempt.rollout_seed if deterministic else attempt.id for attempt in started}
        later = {attempts[number].run_id for number in self.later_attempts}
        return len(looks) + len(later - {attempt.run_id for attempt in started})


class EvidenceCollector:
    """Collects valid responses by input key, for `aggregate.aggregate`.

    Args:
        policies: attempt number → run id, rollout seed.
    """

    def __init__(
        self, scopes: tuple[PolicyScope, ...], deterministic: bool, policies: Mapping[int, tuple[str, int]]
    ) -> None:
        self.size = 0
        self._scopes = scopes
        self._deterministic = deterministic
        self._policies = policies
        self._held: dict[str, list[Any]] = {}

    def add(self, attempt: int, row: Mapping[str, Any]) -> None:
        if row["kind"] != "group":
            return
        for item in row["responses"]:
            if (
                item["validity"]["valid"] is True
                and item["reward"] is not None
                and item["policy_scope"] in self._scopes
            ):
                self._add(attempt, row, item)

    def _add(self, attempt: int, row: Mapping[str, Any], item: Mapping[str, Any]) -> None:
        held = self._held.get(row["input_key"])
        place = (row["source_dataset"], row["source_row"], row["prepared_sample_id"])
        if held is None:
            held = self._held[row["input_key"]] = [{}, 0, set(), set(), set(), tuple(sorted(row["verifiers"])), place]
            self.size += 1500
        rewards, _, seeds, start, later, verifiers, _ = held
        reward = float(item["reward"])
        if reward not in rewards:
            rewards[reward] = 0
            self.size += 120
        rewards[reward] += 1
        first = item["policy_scope"] == "start_checkpoint"
        (start if first else later).add(attempt)
        run_id, rollout_seed = self._policies[attempt]
        if self._deterministic:
            seed = rollout_seed + item["index"] if item["seed"] is None else item["seed"]
            draw = (seed,) if first else (seed, run_id, *item["policy_versions"])
            if draw not in seeds:
                seeds.add(draw)
                self.size += 200
        else:
            held[1] += 1
        held[5], held[6] = min(verifiers, tuple(sorted(row["verifiers"]))), min(held[6], place)

    def close(self, attempt: int) -> None:
        return

    def take(self) -> Iterator[Item]:
        held, self._held, self.size = self._held, {}, 0
        for input_key, found in held.items():
            yield (input_key,), found


def merge_evidence(key: Key, first: list[Any], second: list[Any]) -> list[Any]:
    for reward, count in second[0].items():
        first[0][reward] = first[0].get(reward, 0) + count
    return [
        first[0],
        first[1] + second[1],
        first[2] | second[2],
        first[3] | second[3],
        first[4] | second[4],
        min(first[5], second[5]),
        min(first[6], second[6]),
    ]


def deterministic_all(attempts: Iterable[Attempt]) -> bool:
    """Whether a seed makes a response; attempts of one protocol agree."""
    return all(attempt.deterministic for attempt in attempts)


def gathered(
    sources: Sequence[Source],
    chosen: Mapping[int, Attempt],
    scopes: tuple[PolicyScope, ...],
    folder: Path,
    processes: int,
    memory: int,
) -> tuple[Iterator[tuple[str, Evidence]], dict[str, int]]:
    """Evidence by input key, ascending, and file name → lines that are no rows.

    Args:
        chosen: attempts of one lineage and one protocol, by their numbers.
        folder: temporary; it must stay until all evidence was taken.
        processes, memory: see `aggregate`.
    """
    used = [source for source in sources if source.attempt in chosen]
    policies = {number: (attempt.run_id, attempt.rollout_seed) for number, attempt in chosen.items()}
    make = partial(EvidenceCollector, scopes, deterministic_all(chosen.values()), policies)
    collected = aggregate(parts(used), make, merge_evidence, folder, processes, memory)
    files = collected.files
    compacted = [source for source in used if source.compacted]
    if compacted:
        apart = folder / "compacted"
        apart.mkdir()
        files = few([*files, *_compacted_files(compacted, make(), apart / "rows", memory)], merge_evidence, apart)
    unreadable = {
        source.name: source.unreadable + collected.unreadable[source.attempt]
        for source in used
        if source.unreadable + collected.unreadable[source.attempt]
    }
    return _evidence(merged(files, merge_evidence)), unreadable


def _compacted_files(
    sources: Sequence[Source], collector: EvidenceCollector, path: Path, memory: int
) -> list[SortedFile]:
    files: list[SortedFile] = []
    with SortedWriter(path) as writer:
        for source in sources:
            for row in AttemptRows(source):
                collector.add(source.attempt, row)
                if collector.size > memory:
                    files.append(writer.write(sort(collector.take())))
        files.append(writer.write(sort(collector.take())))
    return files


def _evidence(items: Iterable[Item]) -> Iterator[tuple[str, Evidence]]:
    for (input_key,), (rewards, count, seeds, start, later, verifiers, place) in items:
        yield input_key, Evidence(rewards, count + len(seeds), frozenset(start), frozenset(later), verifiers, place)
