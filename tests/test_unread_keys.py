"""No unread keys: code acts on every key of a run file, beyond checking it."""

import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from key_reads import ROOT, analysed, dead, reads

from reroll.api import Component, Config
from reroll.plugins.manager import HOOKS, load_plugins


def controls():
    spec = importlib.util.spec_from_file_location("make_controls", ROOT / "docs" / "make_controls.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def full_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


class Schema:
    """Every configuration class of the repository's packages.

    Attributes:
        fields: full name → fields that the class declares itself.
        relatives: full name → full names of the classes that it shares fields with.
        sections: name → full name.
        options: full name of a component's class, or of a base of it → full names of the classes of its options.
    """

    def __init__(self, models, sections=(), components=()):
        classes = {cls for model in models for cls in model.__mro__ if issubclass(cls, Config) and cls is not Config}
        self.fields = {
            full_name(cls): [name for name in cls.model_fields if name in vars(cls).get("__annotations__", {})]
            for cls in classes
        }
        self.relatives = {
            full_name(cls): {full_name(other) for other in classes if issubclass(cls, other) or issubclass(other, cls)}
            for cls in classes
        }
        self.sections = {name: full_name(cls) for name, cls in dict(sections).items()}
        self.options = defaultdict(set)
        for component in components:
            for base in component.__mro__:
                if issubclass(base, Component) and base is not Component:
                    self.options[full_name(base)].add(full_name(component.Config))


def schema():
    """Of all packages."""
    manager, pages = load_plugins(), controls()
    own = pages.own_distributions()
    given = {hook: manager.all(hook) for hook in HOOKS if hook != "commands"}
    ours = {
        hook: {name: item.cls for name, item in items.items() if item.distribution in own}
        for hook, items in given.items()
    }
    components = [cls for hook, items in ours.items() if hook != "config_sections" for cls in items.values()]
    configured = [cls for cls in components if issubclass(cls, Component) and cls.Config.model_fields]
    return Schema([model for _, _, model, _ in pages.documented()], ours["config_sections"], configured)


PERMISSIONS = {
    "reroll.replay.task_set.ReplayConfig.allow_container": "tasks in containers are refused without it",
}
"""Keys that do nothing but lift a refusal, which a check makes."""


@pytest.mark.slow
def test_code_acts_on_every_key(tmp_path):
    made = schema()
    assert sum(map(len, made.fields.values())) > 250
    modules = analysed(sorted(ROOT.glob("packages/*/src")), tmp_path)
    found = reads(modules, made.fields, made.sections, made.options)
    assert dead(made.fields, made.relatives, found) == sorted(PERMISSIONS)


CODE = """
from typing import Any

from pydantic import model_validator

from reroll.api import Config


class Inner(Config):
    seed: int = 0
    workers: int = 1
    dead_inside: int = 1


class Section(Config):
    inner: Inner = Inner()
    seed: int = 0
    told: int = 0
    checked: int = 0
    validated: int = 0
    by_property: int = 0
    by_unused_property: int = 0
    by_name: int = 0
    by_key: int = 0
    written: int = 0
    dead: int = 0

    @property
    def doubled(self) -> int:
        return 2 * self.by_property

    @property
    def unused(self) -> int:
        return 2 * self.by_unused_property

    def named(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("by_name",)}

    @model_validator(mode="after")
    def _valid(self) -> "Section":
        assert self.validated >= 0
        return self

    def problems(self) -> list[str]:
        return [str(self.checked), str(self.doubled)]


class Options(Config):
    size: int = 0
    dead_option: int = 0


class Part:
    Config = Options

    def __init__(self, config: Any) -> None:
        self.config = config

    def size(self) -> int:
        return int(self.config.size)


def act(section: Section, other: Any) -> object:
    told = Section(told=section.told)
    return told, section.inner.workers, section.doubled, section.named(), other.value("section.by_key"), other.dead


def unrelated(inner: Inner) -> int:
    return inner.seed
"""
"""Every way in which a key is read, and ways that do not count."""


def test_a_key_that_nothing_acts_on_is_found(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "reroll_strange.py").write_text(CODE)
    fields = {
        "reroll_strange.Section": re.findall(
            r"^    (\w+): (?:int|Inner) =", CODE.split("class Section")[1], re.MULTILINE
        ),
        "reroll_strange.Inner": ["seed", "workers", "dead_inside"],
        "reroll_strange.Options": ["size", "dead_option"],
    }
    assert fields["reroll_strange.Section"][-2:] == ["size", "dead_option"]
    fields["reroll_strange.Section"] = fields["reroll_strange.Section"][:-2]
    modules = analysed([tmp_path / "source"], tmp_path, beside=[ROOT / "packages/core/src"])
    found = reads(
        {"reroll_strange": modules["reroll_strange"]},
        fields,
        {"section": "reroll_strange.Section"},
        {"reroll_strange.Part": {"reroll_strange.Options"}},
    )
    alone = {name: {name} for name in fields}
    assert [name.removeprefix("reroll_strange.") for name in dead(fields, alone, found)] == [
        "Inner.dead_inside",
        "Options.dead_option",
        "Section.by_unused_property",
        "Section.checked",
        "Section.dead",
        "Section.seed",
        "Section.validated",
        "Section.written",
    ]
