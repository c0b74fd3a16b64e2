"""The table of controls: complete, and every key of ours in it exists."""

import re
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from reroll.api import Selection
from reroll.api.selection import Hook
from reroll.dials.table import dials, find
from reroll.miles.rules import EACH
from reroll.plugins import load_plugins
from reroll.serving.sglang.options import sglang_options

LIST = Path(__file__).with_name("controls.txt")
TOGETHER = {
    *("layout", "concurrency", "transport", "asynchronous", "micro_batch", "steps_per_rollout", "over_sampling"),
    *("context", "prompts", "evaluation", "decay", "estimator", "reference", "correction", "folders", "kept", "wandb"),
}
"""Rules of which several controls have a part; test_translate.py shows each."""


def controls():
    """Group and name with its section, as the list has them."""
    group = ""
    for line in LIST.read_text().splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            group = ""
        elif not group:
            group = line
        else:
            yield from ((group, word if "." in word else f"miles.{word}") for word in words)


CONTROLS = list(controls())


def models_of(annotation):
    """Models that a field's value may be, in a list or beside None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_of(argument)]


def has_key(models, parts, plugins):
    """Whether one of the models has the dotted key; what selects a component has the options of all of them."""
    for model in models:
        field = model.model_fields.get(parts[0])
        if field is None:
            continue
        inner = [item for item in models_of(field.annotation) if item is not Selection]
        hooks = [item.name for item in field.metadata if isinstance(item, Hook)]
        inner += [given.cls.Config for hook in hooks for given in plugins.all(hook).values()]
        free = get_origin(field.annotation) is dict
        if len(parts) == 1 or free or has_key(inner, parts[1:], plugins):
            return True
    return False


def exists(key, plugins):
    section, *parts = key.split(".")
    if section == "sglang":
        return parts[0] in sglang_options().by_key
    owners = plugins.all("config_sections")
    return section in owners and has_key([owners[section].cls], parts, plugins)


def test_the_list_of_controls_is_read():
    assert len(CONTROLS) > 150
    assert ("Staleness", "async.max_weight_staleness") in CONTROLS
    assert len({group for group, _ in CONTROLS}) > 30


@pytest.mark.parametrize(("group", "name"), CONTROLS, ids=[f"{name} in {group}" for group, name in CONTROLS])
def test_every_control_has_a_line(group, name):
    assert name in dials()
    message, remedy = dials()[name].told()
    assert message.startswith("use `") or len(remedy) > 15


KEYS = sorted({key for line in dials().values() for key in line.keys})


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_ours_is_in_the_schema(plugins, key):
    assert exists(key, plugins)


def test_keys_that_do_not_exist_are_found(plugins):
    wrong = ["trainer.learning_rate", "serving.transport.bucket", "eval.sets.top", "sglang.nothing", "nothing.here"]
    assert not any(exists(key, plugins) for key in wrong)


@pytest.mark.parametrize("line", dials().values(), ids=list(dials()))
def test_texts_name_keys_that_exist(plugins, line):
    """What a text puts in backquotes with a dot is a key, or one with a value."""
    for quoted in re.findall(r"`([a-z_]+\.[a-z_.]+?)(?: = [^`]+)?`", line.text + line.absent):
        assert exists(quoted, plugins), quoted


def test_every_rule_is_one():
    used = {line.rule for line in dials().values() if line.rule}
    assert used == set(EACH) | TOGETHER


def test_a_control_is_found_under_any_section_and_spelling():
    assert find("rollout-num-gpus") is dials()["miles.rollout_num_gpus"]
    assert find("max_policy_lag", "core") is find("max_policy_lag", "miles") is dials()["core.max_policy_lag"]
    assert find("sglang_page_size").keys == ("sglang.page_size",)
    assert find("sglang_page_size", "core") is None
    assert find("nothing") is None
