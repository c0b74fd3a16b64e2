"""Whether trials can run here: Harbor, and the back end that its environments need."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from typing import Any

from reroll.api import one_line

OLDEST_PYTHON = (3, 12)
OLDEST_HARBOR = (0, 26)
INSTALL = "pip install 'reroll-harbor[harbor]'"


def missing_package() -> str | None:
    """What has to be installed before Harbor can be imported; None where it can."""
    needs = "trials run through the package harbor"
    if sys.version_info < OLDEST_PYTHON:
        wanted, here = ".".join(map(str, OLDEST_PYTHON)), ".".join(map(str, sys.version_info[:2]))
        return f"{needs}, which needs Python {wanted} or newer, and this is {here}: there, {INSTALL}"
    try:
        version = metadata.version("harbor")
    except metadata.PackageNotFoundError:
        return f"{needs}, which is not installed: {INSTALL}"
    if release(version) < OLDEST_HARBOR:
        wanted = ".".join(map(str, OLDEST_HARBOR))
        return f"{needs} {wanted} or newer, and {version} is installed: {INSTALL} --upgrade"
    return None


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `0.26.1rc1` gives `(0, 26)` and what follows it, as far as it is plain."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def missing_back_end(environment: str, import_path: str | None, options: dict[str, Any]) -> str | None:
    """What Harbor itself says against its environments here; None where nothing does. Imports Harbor."""
    shown = f"environment = {environment!r}" if import_path is None else f"environment_import_path = {import_path!r}"
    try:
        factory = import_module("harbor.environments.factory").EnvironmentFactory
        names = factory.registered_names()
        if import_path is None and environment not in names:
            return f"{shown} is no environment of Harbor's; there are: {', '.join(names)}"
        kind = None if import_path else import_module("harbor.models.environment_type").EnvironmentType(environment)
        factory.run_preflight(kind, import_path, options)
    except (Exception, SystemExit) as error:  # Harbor ends the program where a back end is missing
        return f"{shown} cannot be used here: {one_line(str(error) or type(error).__name__, 600)}"
    return None
