"""Writes docs/hooks.md from the hook specifications: `python docs/make_hooks.py [--check]`."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path

from reroll import api
from reroll.api import hooks
from reroll.plugins.manager import HOOKS, PREFIX, load_plugins

PAGE = Path(__file__).with_name("hooks.md")

BESIDE = {
    "publication_modes": (
        api.PublicationContext,
        api.Router,
        api.Admission,
        api.CommitCost,
        api.PublicationReport,
    ),
    "record_writers": (api.Decision,),
    "verifiers": (api.Verdict, api.ServiceVerifier),
    "datasets": (api.DatasetRow, api.DatasetConfig),
    "harnesses": (api.HarnessContext,),
    "launchers": (api.LaunchJob, api.JobState),
    "engines": (api.EngineContext, api.GenerationRequest, api.SamplingParams, api.Completion, api.WeightBucket),
}
"""What the methods of a hook's class are given and give."""

INTRODUCTION = f"""# Hooks

<!-- Written by docs/make_hooks.py; change the docstrings in reroll.api instead. -->

A plugin is a module named by an entry point in the group `reroll`. It implements hooks, each of which gives a list of
classes; a run file selects a class by its `name`, and its options are checked by its `Config`. Contract version:
{api.API_VERSION}.

```python
from reroll import hookimpl


@hookimpl
def reroll_verifiers():
    from my_package.verifier import MyVerifier  # imported when asked, so that loading stays quick

    return [MyVerifier]
```

A plugin that fails to import is listed with its error by `reroll plugins` and stops only a run that selects it. Two
plugins that give one name are an error naming both.
"""


def page() -> str:
    """The whole page."""
    manager = load_plugins()
    parts = [INTRODUCTION]
    for hook in HOOKS:
        function = getattr(hooks, PREFIX + hook)
        given = [name for name in manager.names(hook) if manager.get(hook, name).distribution == "reroll"]
        parts.append(f"## `{PREFIX}{hook}()`\n\n{inspect.getdoc(function)}\n")
        parts.append(f"Gives `{returned(function)}`. Built in: {', '.join(f'`{name}`' for name in given) or 'none'}.\n")
        cls = getattr(api, class_name(function), None)
        if cls is not None and issubclass(cls, api.Component):
            parts.append(contract(cls))
        parts += [f"### `{other.__name__}`\n\n{contract(other)}" for other in BESIDE.get(hook, ())]
    return "\n".join(parts)


def returned(function: object) -> str:
    return str(inspect.signature(function).return_annotation)  # type: ignore[arg-type]


def class_name(function: object) -> str:
    return returned(function).removeprefix("list[type[").removesuffix("]]")


def contract(cls: type) -> str:
    """Docstring and methods of the class that a plugin writes."""
    lines = [f"{inspect.getdoc(cls)}\n"]
    if is_dataclass(cls):
        lines += [f"- `{item.name}: {str(item.type).replace(chr(39), '')}`" for item in fields(cls)]
    for name, member in vars(cls).items():
        if name.startswith("_") or is_dataclass(cls):
            continue
        kind, text = vars(cls).get("__annotations__", {}).get(name, ""), class_text(cls, name)
        if name != "Config" and (text or str(kind).startswith("ClassVar")):
            default = "" if isinstance(member, staticmethod) else f" = {member!r}"
            lines.append(f"- `{name}{default}`: {text}")
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        kind = "async " if inspect.iscoroutinefunction(function) else ""
        required = " (required)" if getattr(member, "__isabstractmethod__", False) else ""
        text = " ".join((inspect.getdoc(function) or "").split())
        signature = str(inspect.signature(function)).replace("'", "")
        lines.append(f"- `{kind}{name}{signature}`{required}" + (f": {text}" if text else ""))
    return "\n".join(lines) + "\n"


def class_text(cls: type, name: str) -> str:
    """The docstring below a class attribute."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        named = isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", None) == name
        if named and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return " ".join(str(following.value.value).split())
    return ""


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else f"{PAGE.name} is out of date: hatch run docs:pages")
    PAGE.write_text(page(), "utf-8")
