"""The options of SGLang's own parser, as a committed snapshot knows them: what a value may be, and how it is written on
a command line."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from reroll.config.problems import shown

SNAPSHOT = Path(__file__).with_name("options.json")

Kind = Literal[
    "flag", "switch", "int", "float", "str", "int_with_suffix", "json", "json_list", "json_table", "str_or_json"
]

WANTED: Mapping[str, str] = {
    "flag": "true",
    "switch": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "int_with_suffix": 'a whole number, or text such as "128k" or "128Ki"',
    "json": "a table, a list, or JSON text",
    "json_list": "a list, or the JSON text of one",
    "json_table": "a table, or the JSON text of one",
    "str_or_json": "text or a table",
}


HOLD_JSON = ("deepep_config", "hicache_storage_backend_extra_config", "hisparse_config", "kv_events_config")
"""Options that SGLang's parser takes as text, and that SGLang reads as JSON later; so it does those whose default is an
empty table."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: of SGLang's own field.
        kind: what one value is; `WANTED` says it in words.
        nargs: argparse's: None for one value, `+` and `*` for several, `?` for one or none.
        choices: what one value may be; None where anything is.
        aliases: other spellings.
        deprecated: what SGLang says to use instead; None for one that it keeps.
    """

    name: str
    kind: Kind
    nargs: str | None
    choices: tuple[Any, ...] | None
    aliases: tuple[str, ...]
    deprecated: str | None
    default: Any

    def wrong(self, key: str, value: Any) -> tuple[str, str] | None:
        """What is wrong with a value of the run file, and the remedy; None for one that SGLang's parser takes."""
        if self.kind == "flag" and value is False:
            if self.default is False:
                return None
            return "is false, which SGLang's command line cannot say", "leave it out: SGLang decides by itself"
        if self.nargs == "?" and value is True:
            return None
        if self.nargs in ("+", "*"):
            wanted = "a list, each item " + self._wanted()
            if not isinstance(value, list):
                return f"is {shown(key, value)}", f"give {wanted}"
            if not value and self.nargs == "+":
                return "is an empty list", "leave it out"
        else:
            wanted = self._wanted()
        for item in value if isinstance(value, list) and self.nargs in ("+", "*") else [value]:
            if not self._fits(item):
                return f"is {shown(key, value)}", f"give {wanted}"
            if self.nargs in ("+", "*") and isinstance(item, str) and item.startswith("-"):
                return f"has the item {shown(key, item)}", "SGLang's parser takes an item with - in front for an option"
        return None

    def arguments(self, key: str, value: Any) -> list[str]:
        """A value that is not `wrong`, in SGLang's spelling; `key` is the name or an alias."""
        flag = _flag(key)
        if self.kind == "flag":
            return [flag] if value else []
        if self.kind == "switch":
            return [flag if value else f"--no-{flag[2:]}"]
        if self.nargs == "?" and value is True:
            return [flag]
        if self.nargs in ("+", "*"):
            return [flag, *map(_text, value)]
        return [f"{flag}={_text(value)}"]  # in one piece, or argparse takes a value with - in front for an option

    def _wanted(self) -> str:
        if self.choices is None:
            return WANTED[self.kind]
        return "one of " + ", ".join(json.dumps(choice) for choice in self.choices)

    def _fits(self, value: Any) -> bool:
        return (self.choices is None or value in self.choices) and _is(self.kind, value)


@dataclass(frozen=True)
class Options:
    """All options of one release, by name and alias."""

    release: str
    by_key: Mapping[str, Option]

    def nearest(self, key: str) -> str:
        """A remedy for a key that is none."""
        wanted = key.lstrip("-").replace("-", "_").lower()
        close = difflib.get_close_matches(wanted, self.by_key, 3, cutoff=0.6)
        # An option is often remembered by a part of its name, which a comparison of letters ranks low.
        whole = sorted((name for name in self.by_key if len(wanted) > 3 and wanted in name), key=len)
        found = list(dict.fromkeys([*close[:1], *whole[:2], *close[1:]]))[:3]
        if not found:
            return f"the keys are the options of `sglang serve`, release {self.release}, with underscores"
        return f"did you mean {' or '.join(map(repr, found))}?"


@cache
def sglang_options() -> Options:
    """The snapshot. `packages/core/tools/sglang_options.py` writes it."""
    read = json.loads(SNAPSHOT.read_text("utf-8"))
    by_key: dict[str, Option] = {}
    for name, given in read["options"].items():
        option = Option(
            name=name,
            kind="str_or_json" if name in HOLD_JSON or given["default"] == "{}" else given["type"],
            nargs=given.get("nargs"),
            choices=tuple(given["choices"]) if "choices" in given else None,
            aliases=tuple(given.get("aliases", ())),
            deprecated=given.get("deprecated"),
            default=given["default"],
        )
        by_key |= dict.fromkeys((name, *option.aliases), option)
    return Options(read["sglang"], by_key)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is(kind: Kind, value: Any) -> bool:
    if kind in ("flag", "switch"):
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "str":
        return isinstance(value, str)
    if kind == "int_with_suffix":
        if isinstance(value, str):
            return bool(re.fullmatch(r"\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i", value))
        return _is("int", value)
    if kind == "str_or_json":
        return isinstance(value, str) or (isinstance(value, dict) and _as_json(value) is not None)
    wanted = {"json": (dict, list), "json_list": (list,), "json_table": (dict,)}[kind]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, wanted) and _as_json(value) is not None


def _as_json(value: Any) -> str | None:
    """None for what JSON has no word for: TOML's dates, numbers that are not finite."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
