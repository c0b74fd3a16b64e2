"""A dataset's entry as JSON, and back without loss.

Scorers compare boards of tuples with `==` and look up keys that are numbers, so that what JSON would make of them does
not do. A table with one key that begins with `$` stands for a value that JSON does not have:

    {"$tuple": [1, 2]}    {"$set": ["a"]}    {"$pairs": [[0, "a"]]}    {"$fraction": "1/3"}    {"$number": "nan"}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Integral, Real
from typing import Any


def encode(value: Any, where: str = "entry") -> Any:
    """The value as lists, tables with text keys, texts, finite numbers, booleans and None. NumPy's numbers and texts
    become Python's. TypeError names the place of a value of any other kind.

    Args:
        where: what errors call the value.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Fraction):
        return {"$fraction": str(value)}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {"$number": str(number)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str.__str__(key): encode(item, f"{where}.{key}") for key, item in value.items()}
        return {
            "$pairs": [[encode(key, f"{where}, a key"), encode(item, f"{where}.{key}")] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        items = [encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, set | frozenset):
        # Sorted, since the order of a set differs between processes and a task must not.
        return {"$set": [encode(item, f"{where}, an item") for item in sorted(value, key=repr)]}
    raise TypeError(f"{where} is {type(value).__module__}.{type(value).__qualname__}, which cannot be saved as JSON")


def decode(value: Any) -> Any:
    """What `encode` was given; ValueError where the value is not what it gives."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    name = next(iter(value), "")
    if len(value) == 1 and name in _READERS:
        try:
            return _READERS[name](value[name])
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"{name}: {error}") from None
    if unknown := [key for key in value if str(key).startswith("$")]:
        raise ValueError(f"{unknown[0]!r} stands for no kind of value; there are {', '.join(_READERS)}")
    return {key: decode(item) for key, item in value.items()}


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.60} is no list")
    return [decode(item) for item in value]


def _pairs(value: Any) -> dict[Any, Any]:
    pairs = _items(value)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise TypeError("an item is no pair")
    return dict(pairs)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda value: tuple(_items(value)),
    "$set": lambda value: set(_items(value)),
    "$pairs": _pairs,
    "$fraction": lambda value: Fraction(_text(value)),
    "$number": lambda value: float(_text(value)),
}
