"""What `reroll plan` says to a translated run file, told of the controls that its keys come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reroll.api import Problem, RunFileError
from reroll.config import LoadedRunFile, load_run_file
from reroll.dials.table import find
from reroll.miles.translate import Translation
from reroll.miles.written import toml_value

Load = Callable[[Sequence[str]], LoadedRunFile]


def refusals(made: Translation, given: Mapping[str, Any], load: Load | None = None) -> list[Problem]:
    """The faults for which `reroll plan` refuses the file, in the order in which it tells them; a fault of a value that
    a control gave has the control as its key.

    Args:
        given: control with its section → value, as it was translated.
        load: takes a run file as `SECTION.KEY=VALUE` texts; by default with the plugins that are installed.
    """
    settings = [
        f"{section}.{key}={toml_value(value)}" for section, keys in made.table.items() for key, value in keys.items()
    ]
    try:
        (load or _load)(settings)
    except RunFileError as error:
        return [_of_control(problem, made, given) for problem in error.problems]
    return []


def _load(settings: Sequence[str]) -> LoadedRunFile:
    from reroll.plan import size_problems
    from reroll.plugins import installed_plugins

    return load_run_file(None, settings, installed_plugins(), [size_problems])


def _of_control(problem: Problem, made: Translation, given: Mapping[str, Any]) -> Problem:
    problem = replace(problem, key=problem.key.removeprefix("--set "))
    control = origin(problem.key, made, given)
    if control is None:
        return problem
    remedy = problem.remedy
    if given.get(control) is True and problem.message.startswith("True: "):
        remedy = remedy or "the control has no value: give one"
    return Problem(control, f"as `{problem.key}`: {problem.message}", remedy)


def origin(key: str, made: Translation, given: Mapping[str, Any]) -> str | None:
    """The control that gave a key of ours, an option of a component or of a set included."""
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    while len(parts) > 1:
        name = ".".join(parts)
        for control in given:
            section, _, plain = control.partition(".")
            line = find(plain, section)
            if line is not None and len(parts) > 2 and name in line.keys:
                return control
        if given_by := made.put_by.get(name):
            return given_by
        parts.pop()
    return None
