"""Whether a decoded line is a row. The standard library alone."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from reroll_records.store.rows import DECISIONS, DISPOSITIONS, GROUP_FIELDS, LARGEST, SCHEMA, SCOPES


def is_row(row: Any) -> bool:
    """Whether a decoded line is a row of this schema, with every field of its type. Fields that it has beside them are
    of no interest. Numbers are below 2^63 in size, so that every engine reads them alike."""
    if type(row) is not dict or type(row.get("schema")) is not int or row["schema"] != SCHEMA:
        return False
    kind = row.get("kind")
    if kind == "group":
        return _is_group(row)
    return (
        kind == "disposition"
        and type(row.get("observation_id")) is str
        and row.get("disposition") in DISPOSITIONS
        and _is_integer(row.get("staleness"))
        and _is_number(row.get("time"))
    )


_group_values = itemgetter(*GROUP_FIELDS)
_group_integers = itemgetter(*(name for name, kind in GROUP_FIELDS.items() if kind is int))
_GROUP_TYPES = frozenset(
    tuple(number if kind is float else kind for kind in GROUP_FIELDS.values()) for number in (float, int)
)
_response_values = itemgetter(
    "index",
    "response_tokens",
    "reward",
    "seed",
    "policy_scope",
    "validity",
    "policy_versions",
    "reward_components",
    "truncated",
    "status",
)
_RESPONSE_TYPES = frozenset(
    (int, int, reward, seed, scope, dict, list, list, bool, str)
    for reward in (float, int, type(None))
    for seed in (int, type(None))
    for scope in (str, type(None))
)
_validity_values = itemgetter("valid", "components")
_component_values = itemgetter("name", "score", "weight")


def _is_group(row: dict[str, Any]) -> bool:
    """Types are compared as tuples, all at once: a reader does this for every line."""
    try:
        if tuple(map(type, _group_values(row))) not in _GROUP_TYPES:
            return False
        for item in row["responses"]:
            if not _is_response(item):
                return False
    except (KeyError, TypeError):
        return False
    return (
        max(integers := _group_integers(row)) < LARGEST
        and min(integers) >= -LARGEST
        and row["filter_decision"] in DECISIONS
        and -LARGEST < row["time"] < LARGEST
        and _are_texts(row["verifiers"])
        and type(row.get("prompt", "")) is str
    )


def _is_response(item: Any) -> bool:
    """Raises KeyError or TypeError for some of what is none."""
    values = _response_values(item)
    if tuple(map(type, values)) not in _RESPONSE_TYPES:
        return False
    index, tokens, reward, seed, scope, checked, versions, components, _, _ = values
    valid, states = _validity_values(checked)
    if not (
        (valid is True or valid is False or valid is None)
        and type(states) is dict
        and (reward is None or -LARGEST < reward < LARGEST)
        and (scope is None or scope in SCOPES)
        and -LARGEST <= index < LARGEST
        and -LARGEST <= tokens < LARGEST
        and (seed is None or -LARGEST <= seed < LARGEST)
        and _are_texts(states.values())
        and type(item.get("response", "")) is str
    ):
        return False
    for version in versions:
        if not _is_integer(version):
            return False
    for component in components:
        name, score, weight = _component_values(component)
        if not (type(name) is str and (score is None or _is_number(score)) and _is_number(weight)):
            return False
    return True


def _are_texts(values: Iterable[Any]) -> bool:
    return all(type(value) is str for value in values)


def _is_integer(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value < LARGEST


def _is_number(value: Any) -> bool:
    """A float, or an integer that is one. Decoders differ in what they make of integers of more than 64 bits, some of
    them floats, so that no number is as large as those; nor is it infinite or no number, which JSON does not know."""
    return (type(value) is float or type(value) is int) and -LARGEST < value < LARGEST
