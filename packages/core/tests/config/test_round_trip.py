"""Every key of a run file, set to another value, is in the written file, and that file loads to the same run."""

import copy
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reroll.api import Engine, RunFileError, Selection, hookimpl
from reroll.api.selection import Hook
from reroll.config import load_run_file
from reroll.plan import size_problems
from reroll.plugins import load_plugins
from reroll.training.config import TrainerSection


class Server(Engine):
    """Stands for engines that are servers, which some keys are for."""

    name = "server"
    recoverable = True
    shares_devices = True


# Core's own keys: what else is installed beside it has its own test of them.
PLUGINS = load_plugins(found for found in entry_points(group="reroll") if found.dist.name == "reroll")
PLUGINS.register(SimpleNamespace(reroll_engines=hookimpl(lambda: [Server])), "servers", "servers")

REGEX = {"name": "regex", "pattern": "([0-9]+)"}
BASE = {"model": {"path": "builtin:tiny-math"}, "data": {"verifiers": [REGEX]}}

EVAL_SET = {"name": "held-out", "task_set": "addition"}

ASYNC = {"async": {"fully_async": True, "max_weight_staleness": 1}}

SERVER = {"serving": {"engine": "server"}}

WITH = {
    "data.verifier_weights": {"data": {"verifier_weights": {"regex": 0.5}}},
    "eval.sets": {"eval": {"sets": [EVAL_SET, {**EVAL_SET, "name": "second"}]}},
    "eval.eval_interval": {"eval": {"sets": [EVAL_SET]}},
    "eval.skip_eval_before_train": {"eval": {"sets": [EVAL_SET]}},
    "eval.sets[0].n_samples_per_eval_prompt": {"eval": {"sets": [{**EVAL_SET, "temperature": 0.5}]}},
    "objective.kl_loss_coef": {"objective": {"use_kl_loss": True}},
    "objective.use_kl_loss": {"objective": {"kl_loss_coef": 0.1}},
    "trainer.env_vars": {"trainer": {"env_vars": {"NCCL_DEBUG": "WARN"}}},
    "serving.env_vars": {"serving": {"env_vars": {"NCCL_DEBUG": "WARN"}}},
    "compiler_cache.enabled": {},
    "compiler_cache.root": {"compiler_cache": {"root": "/some/cache"}},
    "trainer.lr_warmup_init": {"trainer": {"lr_warmup_iters": 2, "lr": 1.0}},
    "trainer.lr_wsd_decay_iters": {"trainer": {"lr_decay_style": "wsd"}},
    "trainer.lr_wsd_decay_style": {"trainer": {"lr_decay_style": "wsd", "lr_wsd_decay_iters": 1}},
    "trainer.lr_decay_iters": {"trainer": {"lr_decay_style": "cosine"}},
    "rollout.rollout_max_context_len": {"rollout": {"rollout_max_prompt_len": 3000}},
    "trainer.min_lr": {"trainer": {"lr_decay_style": "linear", "lr": 1.0}},
    "async.fully_async": {"async": {"max_weight_staleness": 1}},
    "async.max_weight_staleness": {"async": {"fully_async": True}},
    "async.capacity_factor": ASYNC,
    "async.max_concurrent_samples": ASYNC,
    "async.unused_samples_handler": ASYNC,
    "checkpoint.keep_last": {"checkpoint": {"save_interval": 5}},
    "checkpoint.keep_every": {"checkpoint": {"save_interval": 5}},
    "checkpoint.async_save": {"checkpoint": {"save_interval": 5}},
    "placement.colocate": {"serving": {"engine": "server"}},
    "generation.output_index": {"generation": {"output_index": "some/index.parquet"}},
    "generation.band": {"generation": {"band": "[0.25, 0.75)"}},
    "launch.priority": {"launch": {"priority": "low"}},
    "launch.min_runtime": {"launch": {"backend": "slurm", "min_runtime": 30.0}},
    "launch.mounts": {"launch": {"backend": "slurm", "mounts": ["/data:/data:ro"]}},
    "launch.retries": {"launch": {"auto_resume": True}},
    "debug.exit_after_rollout": {"debug": {"exit_after_rollout": 2}},
    "serving.urls": {"serving": {"engine": "server", "urls": ["http://one:1", "http://two:1"]}},
    "serving.router": {"serving": {"engine": "server", "urls": ["http://one:1"], "router": "http://two:1"}},
    "serving.python": SERVER,
    "serving.api_key_env": {"serving": {"engine": "server", "urls": ["http://one:1"]}},
    "serving.startup_timeout": SERVER,
    "serving.health_interval": SERVER,
    "serving.health_timeout": SERVER,
    "serving.request_timeout": SERVER,
    "serving.engine_restarts": SERVER,
    "serving.recovery_timeout": SERVER,
}
"""What a key needs beside itself to be accepted, or its value where no general one fits."""

OPTIONS = {
    "regex": {"pattern": "([0-9]+)"},
    "judge": {"base_url": "http://one:1/v1", "model": "judge"},
    "file": {"path": "prompts.jsonl"},
    "file.label_key": {"path": "prompts.jsonl", "verifier": "regex"},
    "file.verifier": {"path": "prompts.jsonl", "label_key": "answer"},
    "file.path": {},
    "index": {"path": "index.parquet"},
    "index.path": {},
    "manifest": {"path": "prepared/manifest.json"},
    "manifest.path": {},
}
"""Options that a component, or one of its options, needs beside it."""

VALUES = {
    "judge.base_url": ["http://two:1/v1"],
    "judge.api_key_env": ["JUDGE_KEY"],
    "judge.prompt": ["Is {answer} right? {format}"],
    "judge.words": [{"yes": 1.0, "no": 0.0}],
    "judge.scale": [[0.0, 10.0]],
    "judge.pattern": ["(correct)"],
    "index.path": ["other.parquet"],
    "ray.env_vars": [{"NCCL_DEBUG": "WARN"}],
    "slurm.memory": ["64G"],
    "slurm.time_limit": ["2-12:00:00"],
    "slurm.options": [["--constraint=h100"]],
    "index.of": ["addition"],
}
"""Values of options for which no general one fits."""


def model_of(annotation):
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def hook_of(field):
    return next((item.name for item in field.metadata if isinstance(item, Hook)), None)


def selected(name):
    return {"name": name, **OPTIONS[name]} if name in OPTIONS else name


def candidates(annotation, default, hook=None):
    """TOML values that might be given for a field, besides its default."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    number = default if isinstance(default, (int, float)) else 0
    if origin is Annotated:
        found = candidates(arguments[0], default, hook)
    elif origin in (Union, UnionType):
        found = [value for each in arguments if each is not NoneType for value in candidates(each, default, hook)]
    elif origin is Literal:
        found = list(arguments)
    elif origin in (list, tuple):
        one = candidates(arguments[0], None, hook)
        found = [one[:1], one[:2], []]
    elif annotation is Selection:
        found = [selected(name) for name in PLUGINS.names(hook)]
    else:
        found = {
            bool: [not default],
            int: [number * 2, number + 1, number // 2, 4, 64, 1000, 2000],
            float: [number / 2, number * 2, 0.25, 1.5],
            str: ["other", 'quote " and \\ and \n'],
            Path: ["some/file.jsonl"],
        }.get(annotation, [])
    return [value for value in found if value != default]


def fields(cls, prefix):
    """Dotted keys and fields, those of inner tables included."""
    for name, field in cls.model_fields.items():
        key = f"{prefix}.{name}"
        if (inner := model_of(field.annotation)) and inner is not Selection:
            yield from fields(inner, key)
            continue
        yield key, field
        items = get_args(field.annotation) if get_origin(field.annotation) is list else ()
        if items and (inner := model_of(items[0])) and inner is not Selection:
            yield from fields(inner, f"{key}[0]")


def merged(table, other):
    table = copy.deepcopy(table)
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            table[key] = merged(table[key], value)
        else:
            table[key] = copy.deepcopy(value)
    return table


def with_value(table, key, value):
    """`table` with the value at a dotted key, in which `[0]` is the first of a list."""
    table = copy.deepcopy(table)
    inner, *parts = table, *key.split(".")
    for part in parts[:-1]:
        name = part.removesuffix("[0]")
        if part != name:
            inner = inner.setdefault(name, [dict(EVAL_SET)])[0]
        else:
            inner = inner.setdefault(name, {})
    inner[parts[-1]] = value
    return table


def at(table, key):
    for part in key.split("."):
        table = table[part.removesuffix("[0]")]
        table = table[0] if part.endswith("[0]") else table
    return table


def key_tables():
    """Key → run files with another value for it, of which the loader may refuse some."""
    for section, owner in PLUGINS.all("config_sections").items():
        for key, field in fields(owner.cls, section):
            base = merged(BASE, WITH.get(key, {}))
            if key in WITH and section in WITH[key] and key.rsplit(".", 1)[-1] in WITH[key][section]:
                yield key, [base]
                continue
            default = field.get_default()
            if key.startswith("eval.sets[0]."):
                default = EVAL_SET.get(key.rsplit(".", 1)[-1], default)
            values = candidates(field.annotation, default, hook_of(field))
            if isinstance(default, Selection):
                values = [value for value in values if value != default.name]
            if isinstance(default, list) and all(isinstance(item, Selection) for item in default):
                values = [value for value in values if value != [item.name for item in default]]
            if key == "data.verifiers":
                values = [[REGEX, "exact_match"]]
            if values and hook_of(field) != "prompt_filters":
                yield key, [with_value(base, key, value) for value in values]


def option_tables():
    """Key, component and option → run files with another value for it."""
    places = {}
    for section, owner in PLUGINS.all("config_sections").items():
        for key, field in fields(owner.cls, section):
            if hook := hook_of(field):
                places.setdefault(hook, []).append((key, get_origin(field.annotation) is list))
    for hook, keys in places.items():
        for name, given_by in PLUGINS.all(hook).items():
            for option, field in given_by.cls.Config.model_fields.items():
                needed = OPTIONS.get(f"{name}.{option}", OPTIONS.get(name, {}))
                default = needed.get(option, field.get_default())
                for key, is_list in keys:
                    values = VALUES.get(f"{name}.{option}") or candidates(field.annotation, default)
                    selections = [{"name": name, **needed, option: value} for value in values]
                    tables = [with_value(BASE, key, [each] if is_list else each) for each in selections]
                    yield f"{key}{'[0]' if is_list else ''}.{option}", name, tables


KEYS = dict(key_tables())
OPTION_TABLES = list(option_tables())


def load(path, table):
    path.write_text(tomli_w.dumps(table), "utf-8")
    return load_run_file(path, [], PLUGINS, [size_problems])


def load_first(path, tables):
    """The first that the loader takes, with its run."""
    refused = []
    for table in tables:
        try:
            return table, load(path, table)
        except RunFileError as error:
            refused.append(str(error))
    pytest.fail("no value was accepted; add what the key needs to WITH or OPTIONS:\n" + "\n".join(refused))


def check_round_trip(tmp_path, key, tables):
    table, run = load_first(tmp_path / "given.toml", tables)
    written = run.to_toml()
    assert_within(at(table, key), at(written, key))
    again = load(tmp_path / "written.toml", written)
    assert again.to_toml() == written


def assert_within(given_value, kept):
    """All that was given is kept; options that were not given may stand beside it."""
    if isinstance(given_value, dict):
        for name, value in given_value.items():
            assert_within(value, kept[name])
    elif isinstance(given_value, list):
        assert len(given_value) == len(kept)
        for left, right in zip(given_value, kept, strict=True):
            assert_within(left, right)
    elif isinstance(given_value, str) and isinstance(kept, dict):
        assert kept["name"] == given_value
    elif isinstance(kept, str) and Path(kept).is_absolute():
        assert Path(kept) == Path.cwd() / given_value
    else:
        assert kept == given_value


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_another_value_is_written_and_loads_to_the_same_run(tmp_path, key):
    check_round_trip(tmp_path, key, KEYS[key])


@pytest.mark.parametrize(
    ("key", "name", "tables"), OPTION_TABLES, ids=[f"{name} in {key}" for key, name, _ in OPTION_TABLES]
)
def test_an_option_with_another_value_is_written_and_loads_to_the_same_run(tmp_path, key, name, tables):
    check_round_trip(tmp_path, key, tables)


def test_every_section_is_walked():
    walked = {key.split(".")[0] for key in KEYS} | {key.split(".")[0] for key, _, _ in OPTION_TABLES}
    elsewhere = {"sglang"}  # holds SGLang's options, not fields: serving_sglang/test_sglang_section.py
    assert walked | elsewhere >= set(PLUGINS.all("config_sections"))
    assert {"trainer.micro_batch_size", "rollout.scoring.workers", "eval.sets[0].top_p", "output.dir"} <= set(KEYS)


def test_the_defaults_load_to_the_same_run(tmp_path):
    first = load(tmp_path / "given.toml", BASE)
    assert load(tmp_path / "written.toml", first.to_toml()).to_toml() == first.to_toml()


def test_micro_batch_size_is_written_without_the_token_budget_that_it_replaces(tmp_path):
    run = load(tmp_path / "given.toml", merged(BASE, {"trainer": {"micro_batch_size": 4}}))
    again = load(tmp_path / "written.toml", run.to_toml())
    trainer = again.get(TrainerSection)
    assert (trainer.micro_batch_size, trainer.max_tokens_per_micro_batch, trainer.micro_batch_tokens) == (4, None, None)
    plain = load(tmp_path / "written.toml", load(tmp_path / "given.toml", BASE).to_toml()).get(TrainerSection)
    assert (plain.micro_batch_size, plain.micro_batch_tokens) == (None, 16384)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), max_size=3))
def test_any_text_survives_being_written(tmp_path_factory, stop):
    folder = tmp_path_factory.mktemp("any-text")
    table = merged(BASE, {"rollout": {"stop": stop}})
    run = load(folder / "given.toml", table)
    assert run.to_toml()["rollout"]["stop"] == stop
    assert load(folder / "written.toml", run.to_toml()).to_toml() == run.to_toml()


@given(st.floats(1e-12, 1e3), st.integers(0, 2**63 - 1))
def test_any_number_survives_being_written(tmp_path_factory, lr, seed):
    folder = tmp_path_factory.mktemp("any-number")
    table = merged(BASE, {"trainer": {"lr": lr}, "run": {"seed": seed}})
    written = load(folder / "given.toml", table).to_toml()
    again = load(folder / "written.toml", written).to_toml()
    assert (again["trainer"]["lr"], again["run"]["seed"]) == (lr, seed)


def test_relative_paths_mean_the_same_from_another_folder(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "checkpoint").mkdir()
    table = merged(
        BASE,
        {
            "model": {"path": "checkpoint", "chat_template": "chat.jinja"},
            "output": {"dir": "runs/one"},
            "data": {"task_set": {"name": "file", "path": "prompts.jsonl"}},
            "eval": {"sets": [{"name": "held-out", "task_set": {"name": "file", "path": "held-out.jsonl"}}]},
            "serving": {"transport": {"name": "disk", "directory": "weights"}},
        },
    )
    monkeypatch.chdir(here)
    written = load(Path("given.toml"), table).to_toml()
    paths = {
        "model.path": "checkpoint",
        "model.chat_template": "chat.jinja",
        "output.dir": "runs/one",
        "data.task_set.path": "prompts.jsonl",
        "eval.sets[0].task_set.path": "held-out.jsonl",
        "serving.transport.directory": "weights",
    }
    assert {key: at(written, key) for key in paths} == {key: str(here / path) for key, path in paths.items()}
    monkeypatch.chdir(there)
    assert load(Path("written.toml"), written).to_toml() == written


def test_a_shipped_model_stays_what_it_is_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(Path("given.toml"), BASE).to_toml()["model"]["path"] == "builtin:tiny-math"
