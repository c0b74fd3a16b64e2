"""`[sglang]`: what `plan` says about options, and what SGLang's own parser makes of them."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from reroll.api import RunFileError
from reroll.config import LoadedRunFile, load_run_file
from reroll.plugins import load_plugins
from reroll.serving.sglang.options import HOLD_JSON, SNAPSHOT, sglang_options
from reroll.serving.sglang.section import SGLangSection

BASE = {"model": {"path": "builtin:tiny-math"}, "data": {"verifiers": ["exact_match"]}}
TOOL = Path(__file__).parents[2] / "tools" / "sglang_options.py"


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def faults(tmp_path, plugins, options, **serving):
    """Faults of `[sglang]`: key → message and remedy."""
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps({**BASE, "serving": {"engine": "sglang", **serving}, "sglang": options}))
    try:
        load_run_file(path, [], plugins)
    except RunFileError as error:
        found = [problem for problem in error.problems if problem.key.startswith("sglang")]
        assert all(problem.line or problem.key == "sglang" for problem in found)
        return {problem.key: f"{problem.message}\n{problem.remedy}" for problem in found}
    return {}


def fault(tmp_path, plugins, key, value, **serving):
    """The text about one option."""
    found = faults(tmp_path, plugins, {key: value}, **serving)
    assert list(found) == [f"sglang.{key}"]
    return found[f"sglang.{key}"]


GOOD = {
    "mem_fraction_static": 0.05,
    "attention_backend": "torch_native",
    "disable_radix_cache": True,
    "enable_mixed_chunk": False,
    "dllm_fdfo": False,
    "lora_strict_loading": True,
    "watchdog_timeout": 600,
    "context_length": "32k",
    "max_total_tokens": 4096,
    "cuda_graph_bs_decode": [1, 2, 4],
    "uvicorn_access_log_exclude_prefixes": [],
    "tensor_parallel_size": 2,
    "preferred_sampling_params": {"temperature": 0.5, "stop": ["a b"]},
    "cuda_graph_config": {"decode": {"backend": "full"}},
    "sidecar_args": ["--one", "two"],
    "lora_paths": [{"lora_name": "a", "lora_path": "b"}, "c=d"],
    "model_checksum": True,
    "eplb_rebalance_layers_per_chunk": -1,
    "forward_pass_metrics_worker_id": "",
}


def test_good_options_have_no_faults_and_are_spelt_as_sglang_does(tmp_path, plugins):
    assert faults(tmp_path, plugins, GOOD) == {}
    arguments = SGLangSection(**GOOD).arguments()
    for written in (["--mem-fraction-static=0.05"], ["--cuda-graph-bs-decode", "1", "2", "4"], ["--no-dllm-fdfo"]):
        assert str(written)[1:-1] in str(arguments)
    assert '--preferred-sampling-params={"temperature": 0.5, "stop": ["a b"]}' in arguments
    assert {"--disable-radix-cache", "--tensor-parallel-size=2", "--lora-strict-loading"} <= set(arguments)
    assert not any("mixed-chunk" in argument for argument in arguments)
    assert SGLangSection().arguments() == []


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("mem_fraction_statik", "'mem_fraction_static'"),
        ("mem-fraction-static", "'mem_fraction_static'"),
        ("sampling", "'sampling_backend'"),
        ("qqqq", "options of `sglang serve`, release 0.5.23"),
    ],
)
def test_an_unknown_option_gets_the_nearest_ones(tmp_path, plugins, key, nearest):
    assert nearest in fault(tmp_path, plugins, key, "abc-value")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("mem_fraction_static", "0.05", "give a number"),
        ("mem_fraction_static", float("nan"), "give a number"),
        ("watchdog_timeout", True, "give a number"),
        ("tp_size", 2.0, "give a whole number"),
        ("context_length", "32 k", '"128k"'),
        ("context_length", "1.5Ki", '"128k"'),
        ("disable_radix_cache", "true", "give true"),
        ("dllm_fdfo", 1, "give true or false"),
        ("enable_lora", False, "leave it out"),
        ("sampling_backend", "torch", 'one of "ascend", "flashinfer", "intel_xpu", "pytorch"'),
        ("log_requests_level", 7, "one of 0, 1, 2, 3"),
        ("cuda_graph_bs_decode", 4, "a list, each item a whole number"),
        ("cuda_graph_bs_decode", [], "leave it out"),
        ("cuda_graph_bs_decode", [4, "8"], "each item a whole number"),
        ("allowed_media_domains", ["--help"], "with - in front"),
        ("preferred_sampling_params", "{temperature", "JSON text"),
        ("sidecar_args", {"a": 1}, "give a list"),
        ("served_model_name", 3, "give text"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path, plugins, key, value, wanted):
    assert wanted in fault(tmp_path, plugins, key, value)


def test_what_reroll_sets_itself_is_refused_with_the_reason_and_secrets_are_not_repeated(tmp_path, plugins):
    given = dict.fromkeys((*SGLangSection.refused, "model"), "hidden-value")
    found = faults(tmp_path, plugins, given)
    assert set(found) >= {f"sglang.{key}" for key in SGLangSection.refused}
    assert all("is refused: " in found[f"sglang.{key}"] for key in SGLangSection.refused)
    assert "hidden-value" not in str(found)
    assert "model.path" in fault(tmp_path, plugins, "model", "m")
    assert set(sglang_options().by_key) >= set(SGLangSection.refused)
    assert "hidden-value" not in fault(tmp_path, plugins, "api_keys", "hidden-value")


def test_two_names_of_one_option_are_in_conflict(tmp_path, plugins):
    found = faults(tmp_path, plugins, {"tp_size": 2, "tensor_parallel_size": 2})
    assert found == {
        "sglang.tensor_parallel_size": "is another name of tp_size, which is given too\nleave one of them out"
    }


def test_deprecated_options_say_what_to_use(tmp_path, plugins):
    assert "--attn-dp-size" in fault(tmp_path, plugins, "enable_dp_attention", True)


def test_data_parallel_servers_take_no_weights_from_a_process_group(tmp_path, plugins):
    assert "at 1 only" in fault(tmp_path, plugins, "data_parallel_size", 2, transport="distributed")
    assert faults(tmp_path, plugins, {"dp_size": 1}, transport="distributed") == {}
    assert faults(tmp_path, plugins, {"dp_size": 2}, transport="disk") == {}


@pytest.mark.parametrize("key", ["tp_size", "pp_size", "dp_size"])
def test_a_server_has_a_process_at_least(key, tmp_path, plugins):
    assert "must be at least 1" in fault(tmp_path, plugins, key, 0)


def test_servers_that_make_weights_up_serve_no_model(tmp_path, plugins):
    assert "makes weights up" in fault(tmp_path, plugins, "load_format", "dummy")
    assert faults(tmp_path, plugins, {"load_format": "safetensors"}) == {}


def test_options_that_reach_no_server_do_nothing(tmp_path, plugins):
    found = faults(tmp_path, plugins, {"dtype": "float32"}, engine="local")
    assert list(found) == ["sglang"] and "serving.engine is 'local'" in found["sglang"]
    attached = {"engine": "sglang", "urls": ["http://127.0.0.1:30000"]}
    assert "run already" in faults(tmp_path, plugins, {"dtype": "float32"}, **attached)["sglang"]
    assert faults(tmp_path, plugins, {}, engine="local") == {}


def test_options_are_kept_in_the_written_run_file(plugins):
    section = SGLangSection(**GOOD)
    written = LoadedRunFile(None, {"sglang": section}, frozenset(), plugins).to_toml()
    assert written == {"sglang": GOOD}
    assert tomli_w.dumps(written)


def test_plan_shows_given_options_and_reads_the_snapshot_for_them_only(tmp_path):
    code = (
        "import sys; from reroll.cli import main; sys.argv[1:] = sys.argv[2:]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('snapshot read' if 'reroll.serving.sglang.options' in sys.modules else 'not read')"
    )
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(BASE))
    command = [sys.executable, "-c", code, "reroll", "plan", str(path)]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert plain.stdout.endswith("not read\n") and "sglang." not in plain.stdout
    with_option = subprocess.run([*command, "--set", "sglang.tp_size=2"], capture_output=True, text=True, check=True)
    assert with_option.stdout.endswith("snapshot read\n")


def test_the_snapshot_holds_nothing_of_the_machine_that_made_it():
    read = json.loads(SNAPSHOT.read_text())
    assert read["sglang"] == "0.5.23"
    assert not [option for option in read["options"].values() if str(option["default"]).startswith(("/", "~"))]
    assert list(read["options"]) == sorted(read["options"])
    assert read["options"]["random_seed"]["default"] is read["options"]["device"]["default"] is None


@pytest.mark.sglang
def test_the_snapshot_is_that_of_the_installed_parser(sglang_python):
    environment = {**os.environ, "SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE": "1"}  # adds a choice, if it is let
    done = subprocess.run([sglang_python, str(TOOL), "-"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    difference = "\n".join(difflib.unified_diff(SNAPSHOT.read_text().splitlines(), done.stdout.splitlines(), n=0))
    assert not difference, f"run {TOOL.name} with SGLang's Python\n{difference}"


CANDIDATES = [
    *(True, False, 3, -1, 0.5, "text", "-text", "", "8k", "1.5Ki"),
    *([], [1, 2], [0.5], ["a", "b"], ["-a"], {"decode": {"max_bs": 8}}, '["a"]', "{}"),
    {"lora_name": "a", "lora_path": "b"},
    [{"lora_name": "a", "lora_path": "b"}],
]
"""Values of every shape. Each option is tried with all of them, and with its choices."""


@pytest.mark.sglang
def test_the_installed_parser_takes_every_accepted_value_as_it_was_meant(sglang_python):
    cases = []
    for key, option in sglang_options().by_key.items():
        accepted = [value for value in (*CANDIDATES, *(option.choices or ())) if option.wrong(key, value) is None]
        assert accepted, key
        cases += [(key, option, value) for value in accepted]
    given = [("--" + key.replace("_", "-"), option.arguments(key, value)) for key, option, value in cases]
    script = str(Path(__file__).with_name("parse_options.py"))
    done = subprocess.run([sglang_python, script], input=json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == len(cases) > 1000
    for (key, option, value), parsed in zip(cases, results, strict=True):
        if option.kind == "json_table" and value != {"decode": {"max_bs": 8}}:
            continue  # what stands inside is SGLang's to check
        if option.deprecated:
            assert parsed
        else:
            assert parsed == [meant(option, value)], (key, value)


def meant(option, value):
    """What SGLang should store for a value."""
    if option.nargs == "?" and value is True:
        return ""
    if option.name == "quantization_param_path" and value == "":
        return None
    if option.kind == "int_with_suffix" and value == "8k":
        return 8000
    if option.kind.startswith("json") and isinstance(value, str):
        return json.loads(value)
    if isinstance(value, dict) and (option.name in HOLD_JSON or option.default == "{}"):
        return json.dumps(value)  # its parser keeps the text, which SGLang reads later
    return value


@pytest.mark.parametrize(
    ("serving", "options", "expected"),
    [
        ({}, {}, False),
        ({}, {"enable_deterministic_inference": True}, True),
        ({"urls": ["http://127.0.0.1:30000"]}, {}, None),
        ({"engine": "local"}, {}, True),
    ],
)
def test_whether_a_seed_makes_a_response_is_known_of_a_run_file(tmp_path, plugins, serving, options, expected):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps({**BASE, "serving": {"engine": "sglang", **serving}, "sglang": options}))
    run = load_run_file(path, [], plugins)
    engine = run.component("engines", run.value("serving.engine.name"))
    assert engine.deterministic(engine.Config(), run) is expected
