"""Writes docs/controls.md from the schema and its docstrings: `python docs/make_controls.py [--check]`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reroll.api import Component, Config, Since
from reroll.api.selection import Hook, Selection
from reroll.plugins.manager import HOOKS, load_plugins

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("controls.md")

INTRODUCTION = """# Controls

<!-- Written by docs/make_controls.py; change the docstrings of the fields instead. -->

Every key of a run file: first the sections, then the options of components, which stand in the table that selects the
component; at the end options of data sets, which no run file has. Where a heading names a package, that package brings
it. `reroll plan` shows what a file resolves to. A key whose default is `required` must be given; `unset` means that the
key has a meaning of its own when it is left out. `since` is the release of the package that brought the key.
"""

PREPARED = "datasets"
"""The hook of what a command selects, and no run file."""
PARTS = {
    "components": "## Options of components\n",
    PREPARED: "## Options of `reroll data prepare`\n\n"
    "Given as `--option KEY=VALUE` when a [data set is prepared](data.md).\n",
}
"""Headings of what comes after the sections."""
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", Any: "any value"}
UNITS = ((r"^Seconds\b", "seconds"), (r"\bin MiB\b", "MiB"), (r"^Bytes\b", "bytes"))
"""A docstring's words → what its number counts."""
BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def own_distributions() -> set[str]:
    """The packages of this repository; what else is installed is not described here."""
    projects = (tomllib.loads(path.read_text("utf-8")) for path in ROOT.glob("packages/*/pyproject.toml"))
    return {project["project"]["name"] for project in projects}


def fields_of(model: type[BaseModel]) -> dict[str, str]:
    """Field name → the docstring below it, of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not (issubclass(cls, BaseModel) and cls.__module__.startswith("reroll")):
            continue
        try:
            source = inspect.getsource(cls)
        except OSError:  # put together of its bases while the program runs
            continue
        (definition,) = ast.parse(textwrap.dedent(source)).body
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


def shown_type(field: FieldInfo, text: str = "") -> str:
    """What a run file may give, in words. Other than the words, `None` is left out: a key that is not given has it."""
    hook = next((item.name for item in field.metadata if isinstance(item, Hook)), "")
    found = " or ".join(_kinds(field.annotation, hook))
    if found in ("whole number", "number"):
        found = next((unit for words, unit in UNITS if re.search(words, text)), found)
    bounds = [f"{sign} {value:g}" for name, sign in BOUNDS if (value := _bound(field.metadata, name)) is not None]
    return f"{found} {' and '.join(bounds)}" if bounds else found


def _bound(metadata: list[Any], name: str) -> float | None:
    return next((found for item in metadata if isinstance(found := getattr(item, name, None), (int, float))), None)


def _kinds(annotation: Any, hook: str) -> list[str]:
    """One text for each member of a union."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0], hook)
    if origin in (Union, types.UnionType):
        members = [item for item in arguments if item is not types.NoneType]
        return list(dict.fromkeys(text for member in members for text in _kinds(member, hook)))
    if origin is Literal:
        return [" | ".join(f"`{json.dumps(item)}`" for item in arguments)]
    if origin in (list, tuple):
        items = [item for item in arguments if item is not ...]
        if origin is tuple and ... not in arguments:
            return [f"list of {len(items)}: {', '.join(_one(item, hook) for item in items)}"]
        return [f"list of {_plural(_one(items[0], hook))}"]
    if origin is dict or annotation is dict:
        return [f"table of {_plural(_one(arguments[1], hook))}" if arguments else "table"]
    if inspect.isclass(annotation) and issubclass(annotation, Selection):
        return [f"component ({hook.replace('_', ' ')})"]
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [f"table `{annotation.__name__}`"]
    if hasattr(annotation, "__supertype__"):
        return _kinds(annotation.__supertype__, hook)
    return [KINDS[annotation]]


def _one(annotation: Any, hook: str) -> str:
    return " or ".join(_kinds(annotation, hook))


def _plural(kind: str) -> str:
    plurals = {"whole number": "whole numbers", "number": "numbers", "text": "texts", "path": "paths"}
    if kind.startswith("component"):
        return kind.replace("component", "components", 1)
    return f"tables{kind.removeprefix('table')}" if kind.startswith("table `") else plurals.get(kind, kind)


def shown_since(model: type[BaseModel], field: FieldInfo) -> str:
    assert issubclass(model, Config), f"{model} is no reroll.api.Config"
    return next((item.release for item in field.metadata if isinstance(item, Since)), model.since)


def table(model: type[BaseModel]) -> str:
    """One row a key."""
    texts = fields_of(model)
    rows = ["| key | type | default | meaning | since |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        cells = [f"`{name}`", shown_type(field, texts[name]), shown_default(field), texts[name]]
        cells.append(shown_since(model, field))
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def nested(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Models that stand for tables inside a section."""
    found: list[type[BaseModel]] = []
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, Selection):
                found += [kind, *nested(kind)]
    return list(dict.fromkeys(found))


def documented() -> Iterator[tuple[str, str, type[BaseModel], str]]:
    """Heading, text below it, model, and distribution: of sections and their inner tables, then of components, of data
    sets at last."""
    manager, own = load_plugins(), own_distributions()
    for name in manager.names("config_sections"):
        given = manager.get("config_sections", name)
        if given.distribution not in own:
            continue
        text = "" if given.cls.model_fields else f"{inspect.getdoc(given.cls)}\n"
        yield f"## `[{name}]`", text, given.cls, given.distribution
        for inner in nested(given.cls):
            yield f"### `{inner.__name__}`, inside `[{name}]`", "", inner, given.distribution
    for hook in sorted(
        set(HOOKS) - {"config_sections", "commands"}, key=lambda hook: (hook == PREPARED, HOOKS.index(hook))
    ):
        for name in manager.names(hook):
            given = manager.get(hook, name)
            cls: type[Component] = given.cls
            if given.distribution in own and cls.Config.model_fields:
                summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
                yield f"### `{name}` ({hook.replace('_', ' ')})", f"{summary}\n", cls.Config, given.distribution


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for heading, text, model, distribution in documented():
        part = None
        if heading.endswith(")"):
            part = PARTS[PREPARED if heading.endswith(f"({PREPARED})") else "components"]
        if part is not None and part not in parts:
            parts.append(part)
        package = f" ({distribution})" if distribution != "reroll" and "inside" not in heading else ""
        body = "\n".join(part for part in (text, table(model) if model.model_fields else "") if part)
        parts.append(f"{heading}{package}\n\n{body}")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: hatch run docs:pages")
    PAGE.write_text(page(), "utf-8")
