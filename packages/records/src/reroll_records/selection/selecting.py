"""From a store's evidence to a frozen selection table. The standard library alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from reroll_records.aggregation.statistics import upper_bound
from reroll_records.aggregation.workers import cores
from reroll_records.selection.choosing import choose
from reroll_records.selection.evidence import Evidence, deterministic_all, gathered
from reroll_records.selection.tables import TABLE_SCHEMA
from reroll_records.store.identity import domain
from reroll_records.store.layout import Attempt, StoreError, scan
from reroll_records.store.rows import SCOPES, PolicyScope
from reroll_records.store.sources import beside_compaction, hashed, snapshot

Skip = Literal["all_zero", "all_full", "zero_variance"]
SKIPS: tuple[Skip, ...] = ("all_zero", "all_full", "zero_variance")


@dataclass(frozen=True)
class Rule:
    """When a prompt is excluded. All that is valid of its evidence must be one reward, and enough of it.

    Attributes:
        skip: `all_zero` (that reward is 0), `all_full` (it is `full_reward`), `zero_variance` (it is any).
        scopes: evidence that counts; beyond `start_checkpoint` the table is one of approximate policies.
        min_observations: valid responses; with deterministic inference those of different seeds.
        min_units: independent attempts; with deterministic inference those of different rollout seeds.
        confidence, max_deviation_rate: the one-sided upper confidence bound on the rate of any other reward must be
            below the rate.
        readmit_fraction: share of the excluded prompts that are kept all the same, so that evidence is refreshed.
        seed: which ones these are.
    """

    skip: tuple[Skip, ...]
    scopes: tuple[PolicyScope, ...] = ("start_checkpoint",)
    full_reward: float = 1.0
    min_observations: int = 16
    min_units: int = 2
    confidence: float = 0.95
    max_deviation_rate: float = 0.2
    readmit_fraction: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises StoreError for values with which no table means anything."""
        wrong = [
            ("skip", self.skip, "name one of " + ", ".join(SKIPS), bool(self.skip) and set(self.skip) <= set(SKIPS)),
            ("scope", self.scopes, "name one of " + ", ".join(SCOPES), set() < set(self.scopes) <= set(SCOPES)),
            ("min-observations", self.min_observations, "give 1 or more", self.min_observations >= 1),
            ("min-units", self.min_units, "give 1 or more", self.min_units >= 1),
            ("confidence", self.confidence, "give a number between 0 and 1", 0 < self.confidence < 1),
            (
                "max-deviation-rate",
                self.max_deviation_rate,
                "give a number in (0, 1]",
                0 < self.max_deviation_rate <= 1,
            ),
            ("readmit-fraction", self.readmit_fraction, "give a number in [0, 1)", 0 <= self.readmit_fraction < 1),
            ("full-reward", self.full_reward, "give a finite number", self.full_reward - self.full_reward == 0),
        ]
        for name, value, remedy, holds in wrong:
            if not holds:
                shown = ", ".join(value) or "not given" if isinstance(value, tuple) else repr(value)
                raise StoreError(f"--{name} is {shown}: {remedy}")

    def matches(self, reward: float) -> Skip | None:
        """The rule by which a prompt with only this reward is skipped."""
        tests = {"all_zero": reward == 0, "all_full": reward == self.full_reward, "zero_variance": True}
        return next((name for name in SKIPS if name in self.skip and tests[name]), None)

    def readmits(self, input_key: str) -> bool:
        """Whether an excluded prompt is kept: the same ones for every table of this seed."""
        drawn = sha256(f"{self.seed}:{input_key}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") < self.readmit_fraction * 2**64


KEPT = ("varied", "of_another_reward", "too_few_observations", "too_few_units", "bound_too_high")
"""Why prompts with evidence are not excluded, in the order in which it is asked."""


@dataclass
class Decisions:
    """What a rule makes of every prompt.

    Attributes:
        domains: domain → counts: `prompts` with evidence, `excluded`, `readmitted`, and those of `KEPT`.
    """

    excluded: list[dict[str, Any]] = field(default_factory=list)
    readmitted: list[dict[str, Any]] = field(default_factory=list)
    domains: dict[str, dict[str, int]] = field(default_factory=dict)


def decide(
    rule: Rule, evidence: Iterable[tuple[str, Evidence]], attempts: Sequence[Attempt], deterministic: bool
) -> Decisions:
    """Every prompt's fate, in the order of `evidence`."""
    decisions = Decisions()
    for input_key, found in evidence:
        counts = decisions.domains.setdefault(
            domain(found.verifiers), dict.fromkeys(("prompts", "excluded", "readmitted", *KEPT), 0)
        )
        counts["prompts"] += 1
        units = found.units(attempts, deterministic)
        if (kept := _kept(rule, found, units)) is not None:
            counts[kept] += 1
            continue
        (reward,) = found.rewards
        dataset, row, sample = found.place
        entry = {
            "input_key": input_key,
            "rule": rule.matches(reward),
            "reward": reward,
            "observations": found.draws,
            "units": units,
            "bound": upper_bound(0, found.draws, rule.confidence),
            "verifiers": list(found.verifiers),
            "source_dataset": dataset,
            "source_row": row,
            "prepared_sample_id": sample,
        }
        if rule.readmits(input_key):
            decisions.readmitted.append(entry)
            counts["readmitted"] += 1
        else:
            decisions.excluded.append(entry)
            counts["excluded"] += 1
    return decisions


def _kept(rule: Rule, found: Evidence, units: int) -> str | None:
    """Why the prompt is not excluded; None if it is."""
    if len(found.rewards) > 1:
        return "varied"
    if rule.matches(next(iter(found.rewards))) is None:
        return "of_another_reward"
    if found.draws < rule.min_observations:
        return "too_few_observations"
    if units < rule.min_units:
        return "too_few_units"
    if not upper_bound(0, found.draws, rule.confidence) < rule.max_deviation_rate:
        return "bound_too_high"
    return None


def build_table(
    rule: Rule, decisions: Decisions, chosen: Mapping[int, Attempt], inputs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The table's content. It holds no time, so that one store and one rule give one digest.

    Args:
        inputs: path, size and SHA-256 of every file of the store.
    """
    attempt = next(iter(chosen.values()))
    return {
        "kind": "selection",
        "schema": TABLE_SCHEMA,
        "lineage": attempt.manifest["lineage"],
        "protocol": attempt.protocol,
        "protocol_digest": attempt.protocol_digest,
        "rule": asdict(rule),
        "approximate_policy": set(rule.scopes) != {"start_checkpoint"},
        "attempts": [
            {"run": attempt.run_id, "attempt": attempt.id, "rollout_seed": attempt.rollout_seed}
            for attempt in chosen.values()
        ],
        "inputs": list(inputs),
        "domains": dict(sorted(decisions.domains.items())),
        "excluded": decisions.excluded,
        "readmitted": decisions.readmitted,
    }


def table_bytes(content: Mapping[str, Any]) -> bytes:
    """The file: one prompt a line, so that two tables can be compared with the usual tools; in ASCII, since file names
    of a checkpoint may be no text at all."""
    lines = []
    for name, value in content.items():
        if name in ("excluded", "readmitted", "inputs") and value:
            items = ",\n    ".join(json.dumps(item) for item in value)
            text = f"[\n    {items}\n  ]"
        else:
            text = json.dumps(value, indent=2).replace("\n", "\n  ")
        lines.append(f"  {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


@dataclass(frozen=True)
class Selected:
    """A table that was built.

    Attributes:
        file: its bytes; `sha256` is their digest.
        warnings: what of the store could not be used.
    """

    file: bytes
    sha256: str
    content: Mapping[str, Any]
    warnings: list[str]


def select(
    path: Path,
    rule: Rule,
    lineage: str | None = None,
    protocol: str | None = None,
    *,
    processes: int | None = None,
    memory: int = 256 << 20,
) -> Selected:
    """A table of a store's evidence; nothing is written.

    Args:
        path: the store's root, or the folder of one lineage.
        lineage, protocol: see `choosing.choose`.
        processes: that read; as many as cores where it is not given.
        memory: bytes of evidence that they may hold together; beyond it they spill into a temporary folder.

    Raises:
        StoreError: there is no store, or not one lineage and protocol.
    """
    return beside_compaction(lambda: _selected(path, rule, lineage, protocol, processes or cores(), memory))


def _selected(
    path: Path, rule: Rule, lineage: str | None, protocol: str | None, processes: int, memory: int
) -> Selected:
    store = scan(path)
    chosen = choose(store, lineage, protocol)
    taken = snapshot(store)
    with TemporaryDirectory(prefix="reroll-select-") as folder:
        evidence, unreadable = gathered(taken.sources, chosen, rule.scopes, Path(folder), processes, memory)
        decisions = decide(rule, evidence, store.attempts, deterministic_all(chosen.values()))
    content = build_table(rule, decisions, chosen, hashed(taken.inputs, processes))
    file = table_bytes(content)
    warnings = [*taken.warnings, *(f"{name}: {count} lines are no rows" for name, count in unreadable.items())]
    return Selected(file, sha256(file).hexdigest(), content, warnings)


def write_table(path: Path, selected: Selected) -> None:
    """Writes the table, whole or not at all. One that is there already is never changed: runs may have pinned it.

    Raises:
        StoreError: there is another file.
        OSError: it cannot be written.
    """
    if path.exists():
        if path.is_file() and path.read_bytes() == selected.file:
            return
        raise StoreError(f"--output {path}: is there already, and runs may have pinned it; give another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(selected.file)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, it fails where somebody else has written the name meanwhile
    except FileExistsError:
        raise StoreError(f"--output {path}: was written by another process meanwhile; give another name") from None
    finally:
        partial.unlink(missing_ok=True)
