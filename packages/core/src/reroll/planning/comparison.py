"""What two run files resolve to differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reroll.config import LoadedRunFile
from reroll.planning.report import make_plan
from reroll.planning.settings import whole

DERIVED = (
    "placement",
    "servers",
    "trainer_environment",
    "sizes",
    "async",
    "lengths",
    "objective",
    "scoring_pass",
    "memory",
)
"""Parts of a plan that follow from settings, and may differ where no setting seems to say so."""


class Setting(NamedTuple):
    """One side of a difference: the value, None for an unset key, and whether the run file or `--set` gives it."""

    value: Any
    given: bool


class SettingDifference(NamedTuple):
    """A side is None where it has no such key: an option of a component that it does not select."""

    key: str
    here: Setting | None
    there: Setting | None


class FigureDifference(NamedTuple):
    key: str
    here: Any
    there: Any


class Comparison(NamedTuple):
    settings: list[SettingDifference]
    derived: list[FigureDifference]

    def to_json(self) -> dict[str, Any]:
        sides = [
            {
                "key": item.key,
                "here": item.here and item.here._asdict(),
                "there": item.there and item.there._asdict(),
            }
            for item in self.settings
        ]
        return {"settings": sides, "derived": [item._asdict() for item in self.derived]}


def compare(here: LoadedRunFile, there: LoadedRunFile) -> Comparison:
    """Settings whose values differ, then figures that follow from them; a value that one side gives and the other has
    by default is no difference."""
    plans = make_plan(here), make_plan(there)
    left, right = map(_settings, plans)
    settings = [
        SettingDifference(key, left.get(key), right.get(key))
        for key in sorted({*left, *right})
        if key not in left or key not in right or left[key].value != right[key].value
    ]
    figures = [_flat({name: plan[name] for name in DERIVED}) for plan in plans]
    derived = [
        FigureDifference(key, figures[0].get(key), figures[1].get(key))
        for key in dict.fromkeys([*figures[0], *figures[1]])
        if figures[0].get(key) != figures[1].get(key)
    ]
    return Comparison(settings, derived)


def _settings(plan: Mapping[str, Any]) -> dict[str, Setting]:
    """Dotted key → value, of given ones and defaults."""
    given, defaults = _flat(plan["explicit"]), _flat(plan["defaults"])
    told = {key: Setting(whole(value, defaults.get(key)), True) for key, value in given.items()}
    return {key: Setting(value, False) for key, value in defaults.items()} | told


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables inside tables as dotted keys; an empty one, and a list, is a value."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
