"""Selection tables: a frozen list of prompts to skip, with what it rests on. The standard library alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from reroll_records.store.identity import differences, digest, domain

TABLE_SCHEMA = 1


class TableError(ValueError):
    """A selection table cannot be read, is another one than was pinned, or does not fit the run."""


@dataclass(frozen=True)
class Table:
    """A table as it was read.

    Attributes:
        content: see `reroll_records.selection.selecting.build_table`.
        sha256: of the file.
    """

    path: Path
    content: Mapping[str, Any]
    sha256: str

    @cached_property
    def excluded(self) -> Mapping[str, str]:
        """Input key → why the prompt is skipped: the rule, and the prompt's domain."""
        return {item["input_key"]: f"{item['rule']} ({domain(item['verifiers'])})" for item in self.content["excluded"]}

    def check_run(self, lineage: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
        """TableError, naming every difference, unless the table's evidence is of this starting checkpoint and of this
        way to draw and judge responses."""
        if lineage["sha256"] != self.content["lineage"]["sha256"]:
            files = list(differences(self.content["lineage"]["files"], lineage["files"]))
            value = self.content["lineage"]["model"]
            if all(found.split(":")[0].endswith(".mtime") for found in files):
                value += (
                    " with the files' times as they were (only these differ: a copy keeps them with cp -p or rsync -a)"
                )
            raise self._refusal("the starting checkpoint", files, "model.path", value)
        if digest(protocol) != self.content["protocol_digest"]:
            settings = differences(self.content["protocol"], protocol)
            raise self._refusal("the protocol", settings, "these settings", "the table's values")

    def _refusal(self, what: str, found: Any, key: str, value: str) -> TableError:
        listed = "\n  ".join(found)
        return TableError(
            f"selection.table: {self.path} was built from evidence of another run setup; {what} differs:\n  {listed}\n"
            f"Set {key} to {value}, build a table from records of this setup (`reroll records select`), or leave "
            "[selection] out"
        )


def load_table(path: Path, pinned: str) -> Table:
    """The table, which must be the pinned one to the byte.

    Args:
        pinned: SHA-256 of the file, in hexadecimal digits.

    Raises:
        TableError: it cannot be read, has another digest, or is no table of this schema.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}") from None
    found = sha256(text).hexdigest()
    if found != pinned:
        raise TableError(
            f"{path} has the SHA-256 {found}, but selection.sha256 pins {pinned}: the table was changed, or it is "
            "another one. Restore the pinned table, or pin this one if it is what you want"
        )
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict) or content.get("kind") != "selection" or content.get("schema") is not TABLE_SCHEMA:
        raise TableError(f"{path} is no selection table of schema {TABLE_SCHEMA}; `reroll records select` builds one")
    if wrong := _wrong(content):
        raise TableError(f"{path} is no table that `reroll records select` has built: {wrong}")
    return Table(path, content, found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that stands twice: which of them a reader takes is anybody's guess."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    return found


_KEY = re.compile(r"[0-9a-f]{64}")


def _wrong(content: Mapping[str, Any]) -> str | None:
    """What keeps a table from being used; None if nothing does."""
    kinds = {"lineage": dict, "protocol": dict, "protocol_digest": str, "rule": dict, "approximate_policy": bool}
    for name, kind in {**kinds, "excluded": list, "readmitted": list}.items():
        if type(content.get(name)) is not kind:
            return f"{name} is {content.get(name)!r:.60}"
    for name, kind in {"sha256": str, "files": dict, "model": str}.items():
        if type(content["lineage"].get(name)) is not kind:
            return f"lineage.{name} is {content['lineage'].get(name)!r:.60}"
    for number, item in enumerate(content["excluded"]):
        key = item.get("input_key") if isinstance(item, dict) else None
        if not (isinstance(key, str) and _KEY.fullmatch(key)):
            return f"excluded[{number}].input_key is {key!r:.60}, and must be 64 hexadecimal digits"
        names = item.get("verifiers")
        if not (type(names) is list and all(type(name) is str for name in names) and type(item.get("rule")) is str):
            return f"excluded[{number}] has no rule and verifiers"
    return None
