"""The plugin manager: own entry-point loop, one record a plugin, nothing instantiated.

pluggy's own loader stops at the first entry point that fails to import; here each is loaded on its own,
so that a broken package is listed with its error and stops only what selects it.
"""

from __future__ import annotations

import difflib
import json
import sys
import traceback
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import pluggy

from reroll.api import PluginError, hooks
from reroll.api.component import API_VERSION, Component

GROUP = "reroll"
PREFIX = "reroll_"
HOOKS = tuple(sorted(name.removeprefix(PREFIX) for name in vars(hooks) if name.startswith(PREFIX)))
"""Every hook's name without its prefix."""


class Provided(NamedTuple):
    """A class that a plugin gives, and where it comes from."""

    cls: type[Any]
    distribution: str
    version: str

    @property
    def path(self) -> str:
        """`module:Class`, for a worker that imports it."""
        return f"{self.cls.__module__}:{self.cls.__qualname__}"


@dataclass
class PluginRecord:
    """What is known of one plugin; `error` says why it gives nothing, or gives less than it should."""

    name: str
    distribution: str
    version: str
    module: str
    hooks: dict[str, list[str]] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class PluginManager:
    """The loaded plugins, by what they give."""

    def __init__(self) -> None:
        self.records: list[PluginRecord] = []
        self._pluggy = pluggy.PluginManager(hooks.PROJECT)
        self._pluggy.add_hookspecs(hooks)
        self._provided: dict[str, dict[str, list[Provided]]] = {}

    def load(self, entry_point: EntryPoint) -> None:
        """Imports and registers one entry point; a failure becomes the record's error."""
        distribution = entry_point.dist
        record = PluginRecord(
            name=entry_point.name,
            distribution=distribution.name if distribution else "",
            version=distribution.version if distribution else "",
            module=entry_point.value,
        )
        self.records.append(record)
        try:
            # What a plugin prints while it is imported must not end up in output that programs read.
            with redirect_stdout(sys.stderr):
                self._register(entry_point.load(), record)
        except (Exception, SystemExit) as error:
            record.error = _describe(error)

    def register(self, module: Any, name: str, distribution: str, version: str = "0") -> PluginRecord:
        """Registers a plugin that no entry point names; raises what is wrong with it."""
        record = PluginRecord(name, distribution, version, getattr(module, "__name__", repr(module)))
        self._register(module, record)
        self.records.append(record)
        return record

    def _register(self, module: Any, record: PluginRecord) -> None:
        key = f"{record.distribution}:{record.name}"
        self._pluggy.register(module, key)
        try:
            self._pluggy.check_pending()
        except pluggy.PluginValidationError:
            self._pluggy.unregister(name=key)
            unknown = sorted(
                name for name in vars(module) if name.startswith(PREFIX) and name[len(PREFIX) :] not in HOOKS
            )
            nearest = difflib.get_close_matches(unknown[0], [PREFIX + hook for hook in HOOKS], 1) if unknown else []
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; hooks are {', '.join(PREFIX + h for h in HOOKS)}"
            raise PluginError(f"implements {', '.join(unknown)}, which is no hook of reroll{hint}") from None
        self._provided.clear()

    def _ask(self, hook: str) -> dict[str, list[Provided]]:
        """Asks every plugin for `hook`; a plugin that raises or gives something else gets an error."""
        if hook in self._provided:
            return self._provided[hook]
        found: dict[str, list[Provided]] = {}
        by_key = {f"{record.distribution}:{record.name}": record for record in self.records}
        for implementation in getattr(self._pluggy.hook, PREFIX + hook).get_hookimpls():
            record = by_key.get(implementation.plugin_name)
            if record is None:
                continue
            try:
                names = [_checked(hook, item) for item in implementation.function()]
            except (Exception, SystemExit) as error:
                record.error = f"{PREFIX}{hook}: {_describe(error)}"
                continue
            record.hooks[hook] = [name for name, _ in names]
            for name, cls in names:
                found.setdefault(name, []).append(Provided(cls, record.distribution, record.version))
        self._provided[hook] = found
        return found

    def ask_all(self) -> list[PluginRecord]:
        """Asks for every hook, so that the records tell all that is given."""
        for hook in HOOKS:
            self._ask(hook)
        return self.records

    def conflicts(self) -> list[str]:
        """Names that two plugins give for one hook, each as a sentence."""
        return [
            _conflict(hook, name, given) for hook in HOOKS for name, given in self._ask(hook).items() if len(given) > 1
        ]

    def names(self, hook: str) -> list[str]:
        return sorted(self._ask(hook))

    def all(self, hook: str) -> dict[str, Provided]:
        """Everything given for `hook`; PluginError if two plugins give one name."""
        return {name: self.get(hook, name) for name in self._ask(hook)}

    def get(self, hook: str, name: str) -> Provided:
        """The class that `name` selects for `hook`; PluginError says what to install or correct."""
        given = self._ask(hook).get(name, [])
        if len(given) == 1:
            return given[0]
        raise PluginError(_conflict(hook, name, given) if given else self.missing(hook, name))

    def missing(self, hook: str, name: str) -> str:
        """Why nothing is there under `name`, and what to do."""
        kind = {"harnesses": "harness"}.get(hook, hook.replace("_", " ").removesuffix("s"))
        sentence = f"no {kind} is named {name!r}"
        package = known_distributions().get(hook, {}).get(name)
        broken = [record for record in self.records if record.error]
        if package:
            failed = [record for record in broken if record.distribution == package]
            if failed:
                return f"{sentence}: its package {package} failed to load: {failed[0].error}"
            if any(record.distribution == package for record in self.records):
                return f"{sentence}: the installed {package} does not give it yet"
            return f"{sentence}: pip install {package}"
        nearest = difflib.get_close_matches(name, self.names(hook), 1)
        if nearest:
            sentence += f"; did you mean {nearest[0]!r}?"
        else:
            sentence += f"; there are: {', '.join(self.names(hook)) or 'none'}"
        if broken:
            listed = "; ".join(f"{record.distribution} ({record.error})" for record in broken)
            sentence += f". These plugins failed to load: {listed}"
        return sentence


def load_plugins(group: Iterable[EntryPoint] | None = None) -> PluginManager:
    """Loads every installed plugin, in order of distribution and name."""
    manager = PluginManager()
    found = entry_points(group=GROUP) if group is None else group
    for entry_point in sorted(found, key=lambda item: (item.dist.name if item.dist else "", item.name)):
        manager.load(entry_point)
    return manager


@cache
def installed_plugins() -> PluginManager:
    """The installed plugins, loaded once in a process."""
    return load_plugins()


@cache
def known_distributions() -> dict[str, dict[str, str]]:
    """Hook → name → the package that gives it."""
    text = resources.files("reroll.plugins").joinpath("known.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = json.loads(text)
    return known


def _checked(hook: str, item: Any) -> tuple[str, Any]:
    """Name and class of one item that a hook gave."""
    if hook == "commands":
        import typer

        name, app = item
        if not isinstance(app, typer.Typer):
            raise PluginError(f"gave {app!r} for the command {name!r}, which is no Typer application")
        return str(name), app
    if hook == "config_sections":
        return str(item.section), item
    if not (isinstance(item, type) and issubclass(item, Component)):
        raise PluginError(f"gave {item!r}, which is no subclass of reroll.Component")
    name = getattr(item, "name", None)
    if not isinstance(name, str) or not name:
        raise PluginError(f"{item.__qualname__} has no `name`: set it to a string in the class")
    if item.contract_version != API_VERSION:
        raise PluginError(
            f"{item.__qualname__} was written for contract version {item.contract_version}, "
            f"this reroll has {API_VERSION}: install versions that match"
        )
    return name, item


def _conflict(hook: str, name: str, given: list[Provided]) -> str:
    who = " and ".join(f"{item.distribution} ({item.path if hook != 'commands' else name})" for item in given)
    return f"the name {name!r} is given twice for {PREFIX}{hook}: by {who}; uninstall one of them"


def _describe(error: BaseException) -> str:
    """One line for a list: what was raised, and where the plugin raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where if not isinstance(error, PluginError) else ''}"
