"""Which settings of a run file were given, and which are defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from reroll.api.selection import Selection
from reroll.config import LoadedRunFile


def split_settings(run: LoadedRunFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that the run file or `--set` gave, and those that are defaults: section → key → value. A table, or a
    component with options, of which only a part is given stands in both, with its parts; so does a list of such items,
    where an item without defaults has an empty table among them."""
    settings = run.to_toml()
    explicit: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, section in run.sections.items():
        for key in (*type(section).model_fields, *(section.model_extra or {})):
            value = settings[name].get(key)
            given, left = (None, value)
            if f"{name}.{key}" in run.explicit:
                given, left = _split(getattr(section, key), value)
            if left is not None or given is None:
                defaults.setdefault(name, {})[key] = left
            if given is not None:
                explicit.setdefault(name, {})[key] = given
    return explicit, defaults


def whole(given: Any, left: Any) -> Any:
    """A setting out of its two parts; what only one of them has is taken as it is."""
    if isinstance(given, Mapping) and isinstance(left, Mapping):
        return {**left, **{key: whole(item, left[key]) if key in left else item for key, item in given.items()}}
    if isinstance(given, list) and isinstance(left, list):
        return [whole(item, rest) for item, rest in zip(given, left, strict=True)]
    return given


def _split(value: Any, shown: Any) -> tuple[Any, Any]:
    """Of a given value as it is shown: what was given, and what of it are defaults, None where nothing is."""
    if isinstance(value, (list, tuple)) and isinstance(shown, list):
        pairs = [_split(*pair) for pair in zip(value, shown, strict=True)]
        left = [rest or {} for _, rest in pairs]
        return [given for given, _ in pairs], left if any(left) else None
    parts = _parts(value, shown)
    if parts is None or not isinstance(shown, dict):
        return shown, None
    split = {key: _split(parts[key], item) for key, item in shown.items() if key in parts}
    defaults = {key: split[key][1] if key in split else item for key, item in shown.items()}
    left_of = {key: item for key, item in defaults.items() if key not in split or item is not None}
    return {key: given for key, (given, _) in split.items()}, left_of or None


def _parts(value: Any, shown: Any) -> Mapping[str, Any] | None:
    """What of a table was given; None for a value that is none."""
    if isinstance(value, Selection):
        return {"name": value.name, **value.options}
    if isinstance(value, BaseModel):
        return {key: getattr(value, key) for key in value.model_fields_set}
    if isinstance(value, str) and isinstance(shown, dict) and shown.get("name") == value:
        return {"name": value}  # a component that options of another one select
    return value if isinstance(value, Mapping) else None
