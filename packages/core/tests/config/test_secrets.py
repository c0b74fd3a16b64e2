"""Secrets in a run file: refused without being repeated, and nothing harmless is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reroll.api import RunFileError
from reroll.config import load_run_file
from reroll.config.environment import environment_problems
from reroll.config.secrets import is_secret, secret_problems
from reroll.config.toml import read_toml
from reroll.launch.ray_jobs import RayLauncherConfig
from reroll.plugins import load_plugins
from reroll.serving.sglang.options import sglang_options

GOOD = '[model]\npath = "builtin:tiny-math"\n[data]\n'
VERIFIERS = "verifiers = [{ name = 'regex', pattern = '(x)' }]\n"
ROOT = Path(__file__).parents[4]
PLUGINS = load_plugins()


def faults(tmp_path, text, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(RunFileError) as caught:
        load_run_file(path, overrides, PLUGINS)
    return caught.value.problems


# Put together here, so that no file of this project holds what a scanner takes for a leak.
SHAPED = {
    "model service": "sk-" + "a1B2" * 8,
    "model hub": "hf_" + "a1B2" * 9,
    "code host": "ghp_" + "a1B2" * 9,
    "cloud": "AKIA" + "A1B2" * 4,
    "chat": "xoxb-" + "1234567890-abcdef",
    "private key": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "password in a URL": "http://user:" + "hunter2@host:1/v1",
    "header": "Bearer " + "a1B2" * 6,
    "web token": "eyJ" + "a1B2" * 4 + ".eyJ" + "a1B2" * 4 + ".c",
}


@pytest.mark.parametrize("value", SHAPED.values(), ids=SHAPED)
@pytest.mark.parametrize(
    "place",
    [
        "[run]\nname = {}\n",
        "[data]\nverifiers = ['math', {{ name = 'judge', base_url = {}, model = 'x' }}]\n",
        "[serving]\nengine = 'sglang'\nurls = ['http://a:1', {}]\n",
        "[nobody]\nx = [[{{ y = {} }}]]\n",
        "[trainer]\nlr = {}\n",
    ],
)
def test_what_looks_like_a_secret_is_a_fault_that_never_repeats_it(tmp_path, place, value):
    found = faults(tmp_path, "[model]\npath = 'builtin:tiny-math'\n" + place.format(repr(value)))
    assert any("a run file is saved and shown" in problem.message for problem in found)
    assert value not in "\n".join(map(str, found))
    assert "environment variable" in "\n".join(map(str, found))


@pytest.mark.parametrize(
    "key", ["api_key", "hf_token", "token", "WANDB_API_KEY", "password", "client_secret", "wandb_key", "api-key"]
)
def test_what_is_named_like_a_secret_is_one(tmp_path, key):
    (problem,) = secret_problems({"a": [{"b": {key: "correct horse"}}]}, lambda key: None)
    assert problem.key == f"a[0].b.{key}"
    assert "correct horse" not in str(problem)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("api_key_env", "JUDGE_KEY"),
        ("max_tokens", 1024),
        ("max_tokens_per_micro_batch", 16384),
        ("token", 5),
        ("api_key", ""),
        ("eos_token", "</s>"),
        ("stop_token_ids", [1, 2]),
        ("input_key", "prompt"),
        ("label_key", "answer"),
        ("tokenizer", "some/tokenizer"),
        ("secret_santa", "task set"),
        ("path", "/data/hf_checkpoints/sk-learn"),
        ("url", "http://127.0.0.1:30000/v1?x=a@b"),
        ("pattern", r"(\d+)@(\w+):(.*)"),
        ("sha256", "9f" * 32),
    ],
)
def test_harmless_values_are_none(key, value):
    assert not is_secret(key, value)


def test_the_fault_names_the_key_that_takes_a_variable(tmp_path):
    text = GOOD + "verifiers = [{ name = 'judge', base_url = 'http://a:1', model = 'x', api_key = 'abcdefgh' }]\n"
    (problem,) = faults(tmp_path, text)
    assert "set data.verifiers[0].api_key_env to the name" in problem.remedy
    assert problem.line == 4
    found = faults(tmp_path, GOOD + VERIFIERS + "[serving]\napi_key = 'abcdefgh'\n")
    assert "set serving.api_key_env to the name" in found[0].remedy


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("[trainer]\nenv_vars = {}\n", "set it in the environment that the run is started in"),
        ("[serving]\nenv_vars = {}\n", "set it in the environment that the run is started in"),
        ("[launch]\nbackend = {{ name = 'ray', env_vars = {} }}\n", "set it where the cluster is started"),
    ],
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "'abcdefgh'"),
        ("SIGNING_KEY", "'c2lnbmluZy1rZXk='"),
        ("DEPLOY_CREDENTIALS", "'svc:correct-horse'"),
        ("DB_PASSWORD", "90210417"),
        ("EXTRA", repr(SHAPED["cloud"])),
        ("HTTPS_PROXY", repr(SHAPED["password in a URL"])),
    ],
)
def test_a_variable_is_to_be_set_elsewhere(tmp_path, table, remedy, name, value):
    text = GOOD + VERIFIERS + table.format(f"{{ NCCL_DEBUG = 'WARN', {name} = {value} }}")
    (problem,) = faults(tmp_path, text)
    assert problem.key.endswith(f"env_vars.{name}") and problem.remedy == f"take it out, and {remedy}"
    assert value.strip("'") not in str(problem)


def test_workers_and_back_ends_ask_the_same_rule():
    given = {"SIGNING_KEY": "c2lnbmluZy1rZXk="}
    (problem,) = environment_problems("trainer.env_vars", given, {})
    assert problem.remedy == "take it out, and set it in the environment that the run is started in"
    assert "c2lnbmluZy1rZXk=" not in str(problem)
    with pytest.raises(ValidationError, match="SIGNING_KEY holds a secret.*where the cluster is started"):
        RayLauncherConfig(env_vars=given)


@pytest.mark.parametrize(
    "variables",
    [
        "{ HF_TOKEN = '' }",
        "{ MONKEY = 'x', TOKENS_SEEN = '1', KEYBOARD = 'us' }",
        "{ TOKENIZERS_PARALLELISM = 'false', HF_TOKEN_PATH = '/run/secrets/hf' }",
        "{ HTTPS_PROXY = 'http://proxy:3128' }",
    ],
)
def test_harmless_variables_are_taken(tmp_path, variables):
    path = tmp_path / "run.toml"
    tables = f"[launch]\nbackend = {{ name = 'ray', env_vars = {variables} }}\n[trainer]\nenv_vars = {variables}\n"
    path.write_text(GOOD + VERIFIERS + tables)
    run = load_run_file(path, [], PLUGINS)
    assert run.value("trainer.env_vars") == run.value("launch.backend").options["env_vars"] != {}


def test_a_refused_key_keeps_its_own_answer(tmp_path):
    found = faults(tmp_path, GOOD + VERIFIERS + "[serving]\nengine = 'sglang'\n[sglang]\napi_key = 'abcdefgh'\n")
    assert [problem.message.split(":")[0] for problem in found] == ["is refused"]
    assert "abcdefgh" not in str(found[0])


@pytest.mark.parametrize(
    "override",
    [
        "run.api_key=abcdefgh12",
        'run.api_key="abcdefgh12"',
        "data.verifiers=[{ name = 'judge', token = abcdefgh12 }]",
        "trainer.env_vars={ SIGNING_KEY = abcdefgh12 }",
        "trainer.env_vars.SIGNING_KEY=abcdefgh12",
        "launch.backend={ name = 'ray', env_vars = { SIGNING_KEY = abcdefgh12 } }",
        "run.name=sk-abcdefgh12abcdefgh12",
        "sk-abcdefgh12abcdefgh12",
    ],
)
def test_an_override_is_not_repeated_either(tmp_path, override):
    found = "\n".join(map(str, faults(tmp_path, GOOD + VERIFIERS, override)))
    assert "abcdefgh12" not in found and "--set" in found


def test_an_override_into_a_secret_does_not_repeat_it(tmp_path):
    found = faults(tmp_path, GOOD + VERIFIERS + "[run]\nname = 'password-of-mine'\n", "run.name.x.y=1", "run.seed=1")
    assert found
    found = faults(tmp_path, "[run]\ntoken = 'abcdefgh12'\n", "run.token=2", "run.seed.x=1")
    assert "abcdefgh12" not in "\n".join(map(str, found))


def test_shipped_run_files_hold_none():
    files = sorted((ROOT / "configs").rglob("*.toml"))
    assert len(files) > 5
    for path in files:
        assert list(secret_problems(read_toml(path)[0], lambda key: None)) == []


def test_options_of_sglang_are_none_but_its_secrets():
    texts = {name for name, option in sglang_options().by_key.items() if option.kind == "str" and not option.nargs}
    named = {name for name in texts if is_secret(name, "some text")}
    assert named == {"api_key", "admin_api_key", "ssl_keyfile_password"}


PLAIN = st.text("abcxyz ./", max_size=12) | st.integers() | st.floats() | st.booleans() | st.just([])
TABLES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.data(), st.sampled_from([*SHAPED.values()]), st.text("abc xyz", max_size=5))
def test_a_secret_is_found_wherever_it_stands(data, secret, around):
    """Inside a text too, under tables and lists of any depth, among values that are none."""
    value, key = data.draw(st.sampled_from([secret, f"{around} {secret}"])), ""
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()):
            before = data.draw(st.lists(TABLES, max_size=2))
            value, key = [*before, value, *data.draw(st.lists(TABLES, max_size=2))], f"[{len(before)}]{key}"
        else:
            value, key = {**data.draw(st.dictionaries(st.sampled_from("abc"), TABLES)), "here": value}, f".here{key}"
    table = {"aside": data.draw(TABLES), "section": {"key": value}}
    (problem,) = secret_problems(table, lambda key: None)
    assert problem.key == f"section.key{key}"
    assert problem.remedy and secret not in str(problem)
    value = {"section": data.draw(TABLES)}
    assert list(secret_problems(value, lambda key: None)) == []
