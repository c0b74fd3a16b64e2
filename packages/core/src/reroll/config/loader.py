"""Loading a run file: sections come from plugins, faults are gathered, then each section checks itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from reroll.api import Component, ConfigSection, PluginError, Problem, RunFileError
from reroll.api.selection import Hook, Selection
from reroll.config.problems import from_validation
from reroll.config.sections import build_sections, within, without_secrets
from reroll.config.toml import apply_override, line_of, parse_override, read_toml
from reroll.plugins import PluginManager, Provided

SectionT = TypeVar("SectionT", bound=ConfigSection)


class SectionMissing(PluginError):
    """A check asks for a section that could not be built. Its faults are told; the check ends there."""


class LoadedRunFile:
    """A run file whose sections are valid and agree with each other."""

    def __init__(
        self,
        path: Path | None,
        sections: Mapping[str, ConfigSection],
        explicit: frozenset[str],
        plugins: PluginManager,
        locate: Callable[[Problem], Problem] = lambda problem: problem,
    ) -> None:
        self.path = path
        self.locate = locate
        """Adds file and line to a problem of this run file."""
        self.sections = dict(sections)
        self.explicit = explicit
        """Dotted keys that the file or `--set` gave; the others are defaults."""
        self.plugins = plugins

    def get(self, section: type[SectionT]) -> SectionT:
        if section.section not in self.sections:
            raise SectionMissing(f"[{section.section}] has faults")
        return cast(SectionT, self.sections[section.section])

    def value(self, key: str) -> Any:
        section, *path = key.split(".")
        if section not in self.sections and section in self.plugins.names("config_sections"):
            raise SectionMissing(f"[{section}] has faults")
        found: Any = self.sections[section]
        for name in path:
            if name not in type(found).model_fields:
                raise KeyError(key)
            found = getattr(found, name)
        return found

    def component(self, hook: str, name: str) -> type[Component]:
        return cast(type[Component], self.plugins.get(hook, name).cls)

    def names(self, hook: str) -> list[str]:
        return sorted(self.plugins.all(hook))

    def distribution(self, hook: str, name: str) -> str:
        return self.plugins.get(hook, name).distribution

    def make(self, hook: str, selection: Selection) -> Any:
        """The selected component, configured."""
        cls = self.component(hook, selection.name)
        return cls(cls.Config(**selection.options))

    def to_toml(self) -> dict[str, dict[str, Any]]:
        """Every section with every value, options of components included and paths absolute, so that the written
        file loads to the same run from anywhere."""
        return {name: self._dump(section) | dict(section.pinned()) for name, section in self.sections.items()}

    def _dump(self, model: BaseModel) -> dict[str, Any]:
        dumped: dict[str, Any] = {}
        for name, field in type(model).model_fields.items():
            value = self._dump_value(getattr(model, name), _hook_of(field))
            if value is not None:
                dumped[name] = value
        return dumped | {name: self._dump_value(value, None) for name, value in (model.model_extra or {}).items()}

    def _dump_value(self, value: Any, hook: str | None) -> Any:
        if isinstance(value, Selection) and hook:
            options = self._dump(self.component(hook, value.name).Config(**value.options))
            return {"name": value.name, **options} if options else value.name
        if isinstance(value, BaseModel):
            return self._dump(value)
        if isinstance(value, (list, tuple)):
            return [self._dump_value(item, hook) for item in value]
        if isinstance(value, dict):
            return {key: self._dump_value(item, None) for key, item in value.items() if item is not None}
        return str(value.absolute()) if isinstance(value, Path) else value

    def table_of(self, hook: str, selection: Selection) -> dict[str, Any]:
        """The selection as a run file writes it in full: name, every option, paths absolute."""
        found = self._dump_value(selection, hook)
        return found if isinstance(found, dict) else {"name": found}

    def selections(self) -> Iterator[tuple[str, str, Selection]]:
        """Every component that the file selects, those that options of another one select among them: dotted key,
        hook, selection."""
        for name, section in self.sections.items():
            yield from self._with_inner(_selections(section, name))

    def _with_inner(self, found: Iterator[tuple[str, str, Selection]]) -> Iterator[tuple[str, str, Selection]]:
        for key, hook, selection in found:
            yield key, hook, selection
            try:
                config = self.component(hook, selection.name).Config(**selection.options)
            except (PluginError, ValidationError):
                continue  # told where components are checked
            yield from self._with_inner(_selections(config, key))

    def used_plugins(self) -> dict[str, Provided]:
        """`hook/name` → what gives it, for every selected component."""
        return {
            f"{hook}/{selection.name}": self.plugins.get(hook, selection.name)
            for _, hook, selection in self.selections()
        }


def load_run_file(
    path: Path | None,
    overrides: Sequence[str],
    plugins: PluginManager,
    checks: Sequence[Callable[[LoadedRunFile], Iterator[Problem]]] = (),
) -> LoadedRunFile:
    """Reads, overrides and checks; RunFileError carries every fault that was found.

    Args:
        path: the TOML file; None starts from defaults alone.
        overrides: `SECTION.KEY=VALUE` texts, applied in order before anything is checked.
        plugins: where sections and components come from.
        checks: asked once every section is valid by itself, for what no section can see alone.
    """
    table, text = read_toml(path) if path else ({}, "")
    problems: list[Problem] = []
    overridden: set[str] = set()

    def locate(problem: Problem) -> Problem:
        if problem.file or path is None or problem.key.startswith("--set"):
            return problem
        if any(problem.key == key or problem.key.startswith((f"{key}.", f"{key}[")) for key in overridden):
            return replace(problem, key=f"--set {problem.key}")
        return replace(problem, file=str(path), line=line_of(text, problem.key))

    for override in overrides:
        try:
            keys, value = parse_override(override)
            apply_override(table, keys, value)
            _name_default(table, keys, plugins)
            overridden.add(".".join(keys))
        except RunFileError as error:
            problems += error.problems
    table, secret, hidden = without_secrets(table, plugins)
    problems += secret
    sections, faults, fallen = build_sections(table, plugins)
    problems += [problem for problem in faults if not any(within(problem.key, key) for key in hidden)]
    explicit = frozenset(f"{name}.{key}" for name, part in table.items() if isinstance(part, dict) for key in part)
    run = LoadedRunFile(path, sections, explicit, plugins, locate)
    found = _check_components(run)
    for section in sections.values():
        found += _gathered(section.section, section.problems(run))
    for check in checks:
        found += _gathered("run file", check(run))
    # A key that fell back to its default for a fault of its own has no further ones.
    known = {problem.key for problem in problems if problem.key not in sections} | fallen | hidden
    problems += [problem for problem in found if not any(within(problem.key, key) for key in known)]
    if problems:
        raise RunFileError(map(locate, problems))
    return run


def _name_default(table: dict[str, Any], path: Sequence[str], plugins: PluginManager) -> None:
    """An option that `--set` gives to a component which the file does not choose is the default component's."""
    owner = plugins.all("config_sections").get(path[0])
    field = owner.cls.model_fields.get(path[1]) if owner is not None and len(path) > 2 else None
    if field is not None and isinstance(field.default, Selection):
        table[path[0]][path[1]].setdefault("name", field.default.name)


def _check_components(run: LoadedRunFile) -> list[Problem]:
    """Does every selected name exist, and do its options fit its configuration?"""
    problems: list[Problem] = []
    for key, hook, selection in run.selections():
        try:
            cls = run.component(hook, selection.name)
        except PluginError as error:
            problems.append(Problem(key, f"{selection.name!r}: {error}"))
            continue
        try:
            cls.Config(**selection.options)
        except ValidationError as error:
            problems += from_validation(error, key, cls.Config)
    return problems


def _gathered(owner: str, check: Iterator[Problem]) -> list[Problem]:
    """What a check finds before it ends or fails."""
    found: list[Problem] = []
    try:
        for problem in check:
            found.append(problem)
    except (PluginError, ValidationError):
        pass  # it met a component that does not exist or has wrong options, which is told already
    except Exception as error:  # a section is anybody's code
        found.append(Problem(owner, f"its own check failed: {type(error).__name__}: {error}"))
    return found


def _selections(model: BaseModel, prefix: str) -> Iterator[tuple[str, str, Selection]]:
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), f"{prefix}.{name}"
        hook = _hook_of(field)
        for place, item in _items(value, key):
            if isinstance(item, Selection) and hook:
                yield place, hook, item
            elif isinstance(item, BaseModel):
                yield from _selections(item, place)


def _hook_of(field: FieldInfo) -> str | None:
    """The hook in which a field's selection is looked up."""
    return next((item.name for item in field.metadata if isinstance(item, Hook)), None)


def _items(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"{key}[{index}]", item
    else:
        yield key, value
