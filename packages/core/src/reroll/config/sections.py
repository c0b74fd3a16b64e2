"""From the table of a run file to its sections: secrets are taken out, every fault is gathered, and what is sound is
built all the same, so that one fault does not hide another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from reroll.api import ConfigSection, Problem
from reroll.config.problems import Answer, from_validation, nearest, shown
from reroll.config.secrets import secret_problems
from reroll.config.toml import Table
from reroll.plugins import PluginManager, Provided
from reroll.plugins.manager import HOOKS


def without_secrets(table: Mapping[str, Any], plugins: PluginManager) -> tuple[Table, list[Problem], set[str]]:
    """The table without the keys that hold secrets, so that nothing told later repeats one; their faults; the keys. A
    key that its section refuses in any case is the section's to answer, which shows no value."""
    owners = plugins.all("config_sections")

    def variable(key: str) -> str | None:
        parent, _, last = key.rpartition(".")
        section, *deeper = parent.split(".")
        if not deeper and "[" not in section:
            known = owners[section].cls.model_fields if section in owners else {}
        else:  # an option of a component
            known = {
                name: field
                for hook in HOOKS
                for given in plugins.all(hook).values()
                for name, field in _options(given.cls)
            }
        return f"{parent}.{last}_env" if f"{last}_env" in known else None

    kept: Table = {name: dict(part) if isinstance(part, dict) else part for name, part in table.items()}
    problems: list[Problem] = []
    hidden: set[str] = set()
    for problem in secret_problems(table, variable):
        section, _, rest = re.sub(r"\[\d+\]", "", problem.key).partition(".")
        key = rest.partition(".")[0]
        if section in owners and key in owners[section].cls.refused and rest == key:
            continue
        problems.append(problem)
        hidden.add(f"{section}.{key}" if key else section)
        if key and isinstance(kept.get(section), dict):
            kept[section].pop(key, None)
        else:
            kept.pop(section, None)
    return kept, problems, hidden


def _options(component: Any) -> Iterable[tuple[str, FieldInfo]]:
    config = getattr(component, "Config", None)
    return config.model_fields.items() if config is not None else ()


def build_sections(
    table: Mapping[str, Any], plugins: PluginManager
) -> tuple[dict[str, ConfigSection], list[Problem], set[str]]:
    """The sections, their faults, and the dotted keys that fell back to their defaults."""
    owners = plugins.all("config_sections")
    problems: list[Problem] = []
    for name, value in table.items():
        if name not in owners:
            problems += _foreign(name, value, plugins)
        elif not isinstance(value, dict):
            problems.append(
                Problem(name, f"is {shown(name, value)}, but a section is a table", f"write [{name}] above its keys")
            )
    sections: dict[str, ConfigSection] = {}
    fallen: set[str] = set()
    for name, owner in sorted(owners.items()):
        value = table.get(name, {})
        given = value if isinstance(value, dict) else {}
        section, faults, wrong = _build_section(owner.cls, name, given, _answers(name, owner.cls, owners))
        problems += faults
        fallen |= {f"{name}.{key}" for key in wrong}
        if section is not None:
            sections[name] = section
    return sections, problems, fallen


def _foreign(name: str, value: Any, plugins: PluginManager) -> list[Problem]:
    """Faults of a section that nobody owns."""
    from reroll.dials.answers import is_foreign, section_problems

    if is_foreign(name):
        return list(section_problems(name, value))
    return [Problem(name, plugins.missing("config_sections", name))]


def _answers(section: str, cls: type[ConfigSection], owners: Mapping[str, Provided]) -> Answer:
    """What to say of a key that a section does not know: where it belongs, or which of ours a name of MILES means."""

    def answer(key: str) -> tuple[str, str] | None:
        from reroll.dials.answers import answer as of_miles
        from reroll.dials.answers import names

        if names(section, key):
            return of_miles(section, key)
        places = [f"{name}.{key}" for name, owner in sorted(owners.items()) if key in owner.cls.model_fields]
        if not places:
            return of_miles(section, key)
        remedy = "use " + " or ".join(f"`{place}`" for place in places)
        close = nearest(key, cls.model_fields)
        if close.startswith("did you mean"):
            remedy = f"{close} Else {remedy}"
        return f"is no key of [{section}]", remedy

    return answer


def _build_section(
    cls: type[ConfigSection], name: str, value: dict[str, Any], answer: Answer
) -> tuple[ConfigSection | None, list[Problem], set[str]]:
    """The section, its faults, and the keys that were left out to build it, so that one fault does not hide what is
    wrong elsewhere: those with faults, and one of those that only contradict each other."""
    try:
        return cls(**value), [], set()
    except ValidationError as error:
        problems = from_validation(error, name, cls, answer)
        wrong = {str(item["loc"][0]) for item in error.errors() if item["loc"]}
    rest = {key: item for key, item in value.items() if key not in wrong}
    try:
        return cls(**rest), problems, wrong
    except ValidationError as error:
        known = {problem.key for problem in problems}
        problems += [problem for problem in from_validation(error, name, cls, answer) if problem.key not in known]
    for key in rest:
        try:
            return cls(**{other: item for other, item in rest.items() if other != key}), problems, wrong | {key}
        except ValidationError:
            continue
    return None, problems, wrong


def within(key: str, parent: str) -> bool:
    """Whether one of two dotted keys is the other, or in it."""
    return key == parent or key.startswith((parent + ".", parent + "[")) or parent.startswith((key + ".", key + "["))
