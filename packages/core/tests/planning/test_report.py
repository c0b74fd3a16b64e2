"""What a plan says, against what is really started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plan_cases import RUN, SGLANG, run_of

from reroll.api import EngineContext
from reroll.cli.plan import amount
from reroll.models.files import resolve_model
from reroll.planning.report import make_plan
from reroll.planning.settings import split_settings, whole
from reroll.serving.environment import engine_environment
from reroll.serving.local.engine import LocalEngine
from reroll.serving.sglang.bootstrap import server_arguments
from reroll.serving.sglang.command import launch_command
from reroll.serving.sglang.options import sglang_options
from reroll.serving.sglang.section import SGLangSection
from reroll.serving.sglang.server import settings_of


def context(run, share_devices=False):
    directory = resolve_model("builtin:tiny-math").directory
    return EngineContext("engine-0", directory, 0, None, Path("log"), 0, run, share_devices)


@pytest.mark.parametrize(
    "overrides",
    [
        ["sglang.tp_size=2", "sglang.pp_size=2"],
        ['sglang.device="cpu"', "sglang.cuda_graph_bs_decode=[1, 2]"],
        ["sglang.json_model_override_args={ rope_scaling = { factor = 2.0 } }", 'serving.python="/opt/bin/python"'],
        ["placement.colocate=true"],
    ],
)
def test_servers_are_launched_with_the_command_line_of_the_plan(tmp_path, overrides):
    run = run_of(tmp_path, *SGLANG, *overrides)
    settings = settings_of(context(run, "placement.colocate=true" in overrides), 1)
    planned = make_plan(run)["servers"]
    assert planned["argv"] == launch_command(settings.python, "<pipe>")
    told = server_arguments(list(settings.arguments), "<address>", "<port>")
    version = told.index("--weight-version") + 1
    assert planned["told"] == [*told[:version], "<version>", *told[version + 1 :]]
    assert planned["environment"] == {**settings.environment, **engine_environment(run)}
    assert planned["launched"] == 1
    assert settings.key and settings.key not in json.dumps(planned)


def test_the_embedded_engine_is_started_with_the_arguments_of_the_plan(tmp_path):
    run = run_of(tmp_path, "serving.engine.kv_cache_mb=64", "serving.engine.threads=3")
    planned = make_plan(run)["servers"]
    config = LocalEngine.Config(kv_cache_mb=64, threads=3)
    (spec,) = LocalEngine.worker_specs(config, context(run))
    assert (planned["argv"], planned["worker"]) == ([], dict(spec.arguments))
    assert planned["environment"] == {**spec.environment, **engine_environment(run)}
    assert planned["worker"]["kv_cache_mb"] == 64


def test_servers_that_run_already_are_not_launched(tmp_path):
    plan = make_plan(run_of(tmp_path, *SGLANG, 'serving.urls=["http://one:1", "http://two:1"]'))
    assert (plan["servers"]["launched"], plan["servers"]["argv"], plan["placement"]["engines"]) == (0, [], 2)
    assert plan["placement"]["gpus"] == 0
    assert plan["memory"]["engine_device"]["because"]["weights"] == "it runs already, with options of its own"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (['trainer.device="auto"'], (None, 0, None)),
        (['trainer.device="cpu"'], (0, 0, 0)),
        (['trainer.device="cuda"', "trainer.num_ranks=4"], (4, 0, 4)),
        (['serving.engine="sglang"', 'trainer.device="auto"'], (None, 1, None)),
        ([*SGLANG, "sglang.tp_size=2", "sglang.pp_size=3", "serving.num_engines=2"], (0, 6, 12)),
        ([*SGLANG, 'sglang.device="cpu"', "sglang.tp_size=2"], (0, 0, 0)),
        (['serving.engine="sglang"', 'trainer.device="cuda"', "serving.num_engines=3"], (1, 1, 4)),
        (
            ['serving.engine="sglang"', 'trainer.device="cuda"', "serving.num_engines=3", "placement.colocate=true"],
            (1, 1, 3),
        ),
    ],
)
def test_the_placement_counts_gpus_or_says_that_it_cannot(tmp_path, overrides, expected):
    placement = make_plan(run_of(tmp_path, *overrides))["placement"]
    assert (placement["trainer_gpus"], placement["engine_gpus"], placement["gpus"]) == expected


def test_given_settings_and_defaults_stand_apart(tmp_path):
    given = ["rollout.scoring.workers=3", "trainer.lr=1e-3", 'serving.engine={ name = "local", threads = 2 }']
    plan = make_plan(run_of(tmp_path, *given))
    explicit, defaults = plan["explicit"], plan["defaults"]
    assert explicit["trainer"] == {"lr": 1e-3} and "lr" not in defaults["trainer"]
    assert explicit["rollout"] == {"scoring": {"workers": 3}}
    assert defaults["rollout"]["scoring"] == {"deadline_seconds": 10.0, "memory_limit_mb": 2048}
    assert explicit["serving"] == {"engine": {"name": "local", "threads": 2}}
    assert "threads" not in defaults["serving"]["engine"] and defaults["serving"]["engine"]["kv_cache_mb"] == 2048
    assert defaults["checkpoint"]["save_interval"] is None
    assert "sglang" not in explicit and "checkpoint" not in explicit


def test_items_of_lists_are_split_as_well(tmp_path):
    plain = run_of(tmp_path).to_toml()["data"]["verifiers"][0]
    explicit, defaults = split_settings(run_of(tmp_path))
    assert explicit["data"]["verifiers"] == [{"name": "regex", "pattern": "(-?\\d+)"}]
    assert defaults["data"]["verifiers"] == [{key: plain[key] for key in plain if key not in ("name", "pattern")}]
    given = [
        'data.verifiers=["exact_match", { name = "regex", pattern = "x" }]',
        'data.task_set={ name = "addition", high = 40, verifier = "regex" }',
        'eval.sets=[{ name = "held", temperature = 0.5, task_set = { name = "addition", split = "held_out" } }]',
    ]
    explicit, defaults = split_settings(run_of(tmp_path, *given))
    assert explicit["eval"]["sets"] == [
        {"name": "held", "temperature": 0.5, "task_set": {"name": "addition", "split": "held_out"}}
    ]
    (left,) = defaults["eval"]["sets"]
    assert left["top_p"] == 1.0 and left["task_set"]["low"] == 0 and not {"name", "temperature"} & set(left)


def test_what_is_given_and_what_is_not_make_the_whole(tmp_path):
    mixture = """
[[data.sources]]
name = "a"
ratio = 0.5
max_prompt_len = 200
task_set = { name = "recheck", buffer_dir = "self" }
[[data.sources]]
name = "b"
ratio = 0.5
max_prompt_len = 100
task_set = "addition"
[trackers]
names = ["jsonl", { name = "wandb", wandb_mode = "offline" }]
"""
    text = RUN.replace('task_set = { name = "addition", high = 40, verifier = "regex" }', "") + mixture
    for run in (run_of(tmp_path, text=text), run_of(tmp_path, *SGLANG, "sglang.tp_size=2")):
        explicit, defaults = split_settings(run)
        for name, section in run.to_toml().items():
            given, left = explicit.get(name, {}), defaults.get(name, {})
            found = whole(given, left)
            assert {key: item for key, item in found.items() if item is not None} == section, name
    names = split_settings(run_of(tmp_path, text=text))[0]["trackers"]["names"]
    assert names == ["jsonl", {"name": "wandb", "wandb_mode": "offline"}]


def test_a_plan_is_json_and_says_what_was_not_checked(tmp_path):
    plan = json.loads(json.dumps(make_plan(run_of(tmp_path))))
    assert plan["runtime_validated"] is False and "memory suffices" in plan["not_checked"]
    assert plan["sizes"]["collection_responses"] == plan["sizes"]["optimizer_batch_responses"] == 128
    assert plan["scoring_pass"]["runs"] == "skipped"


@pytest.mark.parametrize("path", ["/nowhere/at/all", "package:no_such_package/x", "/nowhere/model.gguf"])
def test_a_model_that_is_not_there_is_planned_with_a_reason(tmp_path, path):
    plan = make_plan(run_of(tmp_path, f'model.path="{path}"'))
    memory = plan["memory"]["trainer_rank"]
    assert memory["parameters"] is None and memory["total"] is None
    assert plan["memory"]["engine_device"]["weights"] is None
    assert memory["because"]["parameters"] == plan["memory"]["engine_device"]["because"]["weights"]
    assert "no_such_package" in memory["because"]["parameters"] or "nowhere" in memory["because"]["parameters"]


def test_the_view_says_who_decides_what_is_null_in_json(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\npath = "builtin:tiny-math"\n[serving]\nengine = "sglang"\n')
    task_set = 'data.task_set={ name = "addition", verifier = "exact_match" }'
    overrides = ["--set", 'data.verifiers=["exact_match"]', "--set", task_set]
    command = [sys.executable, "-m", "reroll", "plan", "run.toml", *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'trainer_gpus    decided by the machine (trainer.device = "auto")' in done.stdout
    assert "SGLang decides: sglang.mem_fraction_static is not given" in done.stdout
    given, defaults = done.stdout.split("given by the file or --set\n")[1].split("\ndefaults\n")
    assert "serving.engine" in given and "trainer.lr = 1e-06" in defaults and "trainer.lr " not in given
    assert "not validated at run time" in done.stdout


def test_the_view_says_that_no_server_is_launched(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "reroll", "plan", "run.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "no server is launched; one worker an engine, started with model_dir=" in done.stdout, done.stderr
    assert 'data.verifiers = [{"name": "regex", "pattern": "(-?\\\\d+)"}]' in done.stdout


def test_amounts_are_shown_in_the_largest_unit():
    shown = [amount(number) for number in (0, 1023, 1024, 3 * 2**19, 5 * 2**30)]
    assert shown == ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "5.0 GiB"]


def told(folder, *overrides):
    return make_plan(run_of(folder, *SGLANG, *overrides))["servers"]["told"]


BOOLEANS = sorted({option.name for option in sglang_options().by_key.values() if option.kind in ("flag", "switch")})


def test_booleans_become_the_switches_that_the_servers_parser_has(tmp_path):
    assert len(BOOLEANS) > 100
    plain = told(tmp_path)
    seen = set()
    for name in BOOLEANS:
        option = sglang_options().by_key[name]
        if name in SGLangSection.refused or option.deprecated:
            continue
        flag = "--" + name.replace("_", "-")
        assert SGLangSection(**{name: True}).arguments() == [flag]
        if option.kind == "switch":
            assert SGLangSection(**{name: False}).arguments() == [f"--no-{flag[2:]}"]
        elif option.default is False:
            assert SGLangSection(**{name: False}).arguments() == []
        else:
            assert option.wrong(name, False) is not None
        seen.add((option.kind, option.default is False))
    assert {("flag", True), ("switch", False)} <= seen
    assert told(tmp_path, "sglang.enable_torch_compile=false") == plain
    assert set(told(tmp_path, "sglang.enable_torch_compile=true")) - set(plain) == {"--enable-torch-compile"}


def test_tables_become_the_json_that_the_server_reads(tmp_path):
    graphs = (
        "sglang.cuda_graph_config={ decode = { backend = 'full', max_bs = 4 }, prefill = { backend = 'disabled' } }"
    )
    override = "sglang.json_model_override_args={ rope_scaling = { factor = 2.0 } }"
    arguments = told(tmp_path, graphs, override)
    written = '{"decode": {"backend": "full", "max_bs": 4}, "prefill": {"backend": "disabled"}}'
    assert f"--cuda-graph-config={written}" in arguments
    assert '--json-model-override-args={"rope_scaling": {"factor": 2.0}}' in arguments
    assert '--json-model-override-args={"a": 1}' in told(tmp_path, "sglang.json_model_override_args='{\"a\": 1}'")
