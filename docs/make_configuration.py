"""Writes docs/configuration.md from the sections' docstrings: `python docs/make_configuration.py [--check]`."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reroll.api import Component
from reroll.api.selection import Selection
from reroll.plugins.manager import load_plugins

OWN = ("reroll-records",)
"""Packages beside core that bring sections."""
PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """# Configuration

<!-- Written by docs/make_configuration.py; change the docstrings of the sections instead. -->

Every key of a run file that core gives, and where a heading says so a package of its own; then the options of core's
components. `reroll plan` shows what a file resolves
to. A key without a default must be given; `unset` means that the key has a meaning of its own when it is left out.
"""


def fields_of(model: type[BaseModel]) -> dict[str, str]:
    """Field name → the docstring below it, of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not (issubclass(cls, BaseModel) and cls.__module__.startswith("reroll")):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                found[statement.target.id] = " ".join(str(following.value.value).split())
    return {name: found.get(name, "") for name in model.model_fields}


def shown_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, Selection):
        return f"`{json.dumps(value.name)}`"
    if isinstance(value, list):
        return f"`{json.dumps([item.name if isinstance(item, Selection) else item for item in value])}`"
    return "a table" if isinstance(value, BaseModel) else f"`{json.dumps(value)}`"


def table(model: type[BaseModel]) -> str:
    """One row a key."""
    texts = fields_of(model)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        meaning = texts[name].replace("|", "\\|")
        rows.append(f"| `{name}` | {shown_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def nested(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Models that stand for tables inside a section."""
    found: list[type[BaseModel]] = []
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, Selection):
                found.append(kind)
    return found


def page() -> str:
    """The whole page."""
    manager = load_plugins()
    parts = [INTRODUCTION]
    for name in manager.names("config_sections"):
        given = manager.get("config_sections", name)
        if given.distribution not in ("reroll", *OWN):
            continue
        package = f" ({given.distribution})" if given.distribution in OWN else ""
        body = table(given.cls) if given.cls.model_fields else f"{inspect.getdoc(given.cls)}\n"
        parts.append(f"## `[{name}]`{package}\n\n{body}")
        parts += [f"### `{inner.__name__}`, inside `[{name}]`\n\n{table(inner)}" for inner in nested(given.cls)]
    parts.append("## Options of components\n")
    for hook in ("task_sets", "verifiers", "engines", "placements", "transports", "advantages", "corrections"):
        for name in manager.names(hook):
            given = manager.get(hook, name)
            cls: type[Component] = given.cls
            if given.distribution == "reroll" and cls.Config.model_fields:
                summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
                parts.append(f"### `{name}` ({hook.replace('_', ' ')})\n\n{summary}\n\n{table(cls.Config)}")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: hatch run docs:pages")
    PAGE.write_text(page(), "utf-8")
