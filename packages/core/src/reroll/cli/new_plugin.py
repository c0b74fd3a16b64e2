"""`reroll new-plugin`: a complete package to start a plugin from."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    verifier = "verifier"


def new_plugin(
    kind: Annotated[Kind, typer.Argument(help="What the plugin gives.")],
    name: Annotated[str, typer.Argument(help="What run files call it, e.g. `unit_tests`.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to write; by default ./<distribution>.")
    ] = None,
) -> None:
    """Write a complete plugin package: pyproject, class, configuration, README, and tests that pass."""
    from reroll.api import RerollError

    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise RerollError(f"NAME = {name!r}: use lower-case words joined by - or _, such as unit_tests")
    plain = name.replace("-", "_")
    values = {
        "name": plain,
        "module": f"reroll_{kind}s_{plain}",
        "distribution": f"reroll-{kind}s-{plain.replace('_', '-')}",
        "class_name": "".join(word.capitalize() for word in plain.split("_")),
        "bound": _version_bound(),
    }
    target = directory or Path(values["distribution"])
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RerollError(f"{target} exists and is not empty: give another folder with --dir")
    for path, text in render(kind, values).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    typer.echo(
        f"{target}: a complete package. Next:\n"
        f"  pip install -e {target} && reroll plugins\n"
        f"  pytest {target}\n"
        "in the environment of hatch, at the root of a clone of reroll:\n"
        f"  hatch run pip install -e {target.resolve()} && hatch run reroll plugins\n"
        f"  hatch run pytest {target.resolve()}"
    )


def render(kind: str, values: dict[str, str]) -> dict[str, str]:
    """Relative path → text of every file of the package."""
    from importlib import resources
    from string import Template

    root = Path(str(resources.files("reroll.cli"))) / "templates" / kind
    files: dict[str, str] = {}
    for path in sorted(root.rglob("*.txt")):
        relative = (
            path.relative_to(root).as_posix().removesuffix(".txt").replace("src/module", f"src/{values['module']}")
        )
        files[relative] = Template(path.read_text("utf-8")).substitute(values)
    return files


def _version_bound() -> str:
    """Any patch of the installed minor version: contracts may change with the next."""
    from importlib.metadata import version

    major, minor, *_ = version("reroll").split(".")
    return f">={major}.{minor},<{major}.{int(minor) + 1}"
