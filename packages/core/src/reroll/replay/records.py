"""What one saved line says of itself: where it is from, what it was worth, whether something can be derived from it.

Lines of another product that have the reference's shape are read as well: their stamp is `info.prime_rl`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json

Record = Mapping[str, Any]


class Stamp(NamedTuple):
    """What a run wrote on a rollout; None for what it did not say."""

    kind: str | None
    env_name: str | None
    group_id: str | None
    policy_version: int | None
    is_filtered: bool | None


def read_line(line: bytes) -> dict[str, Any]:
    """One saved line as a mapping; ValueError says why it is none."""
    try:
        record = from_json(line, cache_strings="keys")
    except ValueError:
        record = _read_slowly(line)
    if not isinstance(record, dict):
        raise ValueError(f"it is no JSON object but {type(record).__name__}")
    return record


def _read_slowly(line: bytes) -> Any:
    """What the quick reader refuses may be JSON all the same: lone surrogates, and lineages that are nested deeply."""
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None


def stamp(record: Record) -> Stamp:
    """The record's stamp: reroll's own, or a peer's."""
    found = _own_stamp(record) or _table(_table(record.get("info")).get("prime_rl"))
    return Stamp(*(found.get(name) for name in Stamp._fields))


def _own_stamp(record: Record) -> Mapping[str, Any]:
    return _table(_table(record.get("info")).get("reroll"))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def unusable(record: Record) -> str | None:
    """Why nothing can be derived from the record, or None where something can."""
    nodes = record.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        return "it has no nodes"
    sampled = False
    for index, node in enumerate(nodes):
        if not isinstance(node, Mapping) or not isinstance(_table(node.get("message")).get("role"), str):
            return f"node {index} has no message with a role"
        parent = node.get("parent")
        if parent is not None and (type(parent) is not int or not 0 <= parent < index):
            return f"node {index} has the parent {parent!r:.40}, which is no node before it"
        sampled = sampled or bool(node.get("sampled"))
    if record.get("errors"):
        return f"its rollout failed: {record['errors']!r:.120}"
    return None if sampled else "the model said nothing in it"


def usable(record: Record) -> bool:
    """Whether something can be derived from the record: it has nodes, each with a message and after its parent, one of
    them at least was sampled, and its rollout had no errors."""
    return unusable(record) is None


def is_derived(record: Record) -> bool:
    """Whether the record's task was itself made from a saved rollout, by any derivation."""
    return source_of(_table(record.get("task"))) is not None


def source_of(task: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The task that a saved task was derived from; None for an original one."""
    source = task.get("source_task")
    return source if isinstance(source, Mapping) and task.get("source_id") is not None else None


def innermost(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The original task at the beginning of a saved task's lineage; an original one is its own."""
    while (source := source_of(task)) is not None:
        task = source
    return task


def depth(task: Mapping[str, Any]) -> int:
    """How many derivations lie between a saved task and the original one; 0 for an original."""
    count = 0
    while (source := source_of(task)) is not None:
        task, count = source, count + 1
    return count


MOST_NESTING = 300
"""Of what is dispatched: what goes deeper could not be sent to another process, or saved with what is answered."""


def nested_too_deeply(value: Any) -> bool:
    """Whether more than `MOST_NESTING` lists and tables are within each other."""
    level = [value]
    for _ in range(MOST_NESTING + 1):
        tables = (item.values() if isinstance(item, Mapping) else item for item in level)
        level = [inner for table in tables for inner in table if isinstance(inner, Mapping | list)]
        if not level:
            return False
    return True


def original_reward(record: Record) -> float | None:
    """The reward that the rollout got: what reroll's stamp says, else the sum of the weighted `rewards`. None where it
    was not scored, or the number is not finite."""
    own = _own_stamp(record)
    rewards: list[Any] = [own.get("reward")] if own else list(_table(record.get("rewards")).values())
    if not rewards or any(isinstance(reward, bool) or not isinstance(reward, (int, float)) for reward in rewards):
        return None
    try:
        total = float(sum(rewards))
    except OverflowError:
        return None
    return total if math.isfinite(total) else None


def identity(record: Record, line: bytes) -> str:
    """The record's id; where it has none, a digest of its line stands for it, so that no two records share a seed."""
    given = record.get("id")
    if isinstance(given, str) and given:
        return given
    return f"sha256:{hashlib.sha256(line.rstrip()).hexdigest()[:32]}"


def anchor_seed(seed: int, identity: str) -> int:
    """The seed below 2^63 of a derivation's choices in one record.

    Args:
        seed: the run's data seed.
        identity: of the record.
    """
    return number_from("anchor", seed, identity)


def number_from(*parts: object) -> int:
    """A number below 2^63 that follows from the parts alone, the same in every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1
