"""`[serving]`: keys that would do nothing, and what does not go together."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from reroll.api import Engine, RunFileError, hookimpl
from reroll.config import load_run_file
from reroll.plugins import load_plugins
from reroll.serving.config import ServingSection

GOOD = """
[model]
path = "builtin:tiny-math"
[data]
verifiers = [{ name = "regex", pattern = "(\\\\d+)" }]
"""


class Server(Engine):
    name = "server"
    recoverable = True


def load(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    plugins = load_plugins()
    plugins.register(SimpleNamespace(reroll_engines=hookimpl(lambda: [Server])), "servers", "servers")
    return load_run_file(path, overrides, plugins)


def section(tmp_path, *overrides):
    return load(tmp_path, *overrides).get(ServingSection)


def problem(tmp_path, *overrides):
    with pytest.raises(RunFileError) as caught:
        load(tmp_path, *overrides)
    (found,) = caught.value.problems
    return replace(found, key=found.key.removeprefix("--set "))


SERVER = 'serving.engine="server"'
URLS = 'serving.urls=["http://127.0.0.1:30000", "http://127.0.0.1:30001"]'


@pytest.mark.parametrize(
    "override",
    [
        URLS,
        'serving.router="http://127.0.0.1:30000"',
        'serving.python="/opt/sglang/bin/python"',
        "serving.startup_timeout=60.0",
        "serving.health_interval=1.0",
        "serving.health_timeout=60.0",
        "serving.request_timeout=60.0",
        "serving.engine_restarts=1",
        "serving.recovery_timeout=60.0",
    ],
)
def test_keys_of_servers_do_nothing_for_the_embedded_engine(tmp_path, override):
    found = problem(tmp_path, override)
    assert found.key == override.split("=")[0]
    assert "does nothing: the engine 'local'" in found.message
    assert "leave it out, or choose an engine that is a server" in found.remedy
    load(tmp_path, SERVER, override, *([URLS] if override.startswith("serving.router") else []))


def test_urls_count_the_engines(tmp_path):
    assert section(tmp_path, SERVER).num_engines == 1
    assert section(tmp_path, SERVER, URLS).num_engines == 2
    assert section(tmp_path, SERVER, URLS, "serving.num_engines=2").num_engines == 2
    found = problem(tmp_path, SERVER, URLS, "serving.num_engines=3")
    assert found.key == "serving.num_engines"
    assert "3 is not the number of serving.urls, which is 2" in found.message


def test_a_resolved_run_file_with_urls_loads_to_itself(tmp_path):
    run = load(tmp_path, SERVER, URLS)
    assert run.to_toml()["serving"]["num_engines"] == 2
    assert list(run.to_toml()["serving"]["urls"]) == ["http://127.0.0.1:30000", "http://127.0.0.1:30001"]


@pytest.mark.parametrize(
    ("overrides", "key", "text"),
    [
        (['serving.urls=["127.0.0.1:30000"]'], "serving.urls[0]", "is no URL"),
        (['serving.urls=["http://a:99999"]'], "serving.urls[0]", "is no URL"),
        (['serving.urls=["http://me:secret@a"]'], "serving.urls[0]", "looks like a URL with a password"),
        (['serving.urls=["http://a/?key=secret"]'], "serving.urls[0]", "is no URL"),
        (['serving.urls=["http://a", "http://a"]'], "serving.urls[1]", "given twice"),
        (['serving.urls=["http://a", "http://a/"]'], "serving.urls[1]", "given twice"),
        ([URLS, 'serving.python="python"'], "serving.python", "no server is launched"),
        (['serving.api_key_env="KEY"'], "serving.api_key_env", "gets a key of its own"),
        ([URLS, 'serving.router="a:1"'], "serving.router", "is no URL"),
        (['serving.router="http://a:1"'], "serving.router", "in front of no server"),
        (
            [URLS, 'serving.router="http://a:1"', 'serving.publication_mode="engine_drain"'],
            "serving.publication_mode",
            "needs every group on one engine",
        ),
    ],
)
def test_what_does_not_go_together_is_told(tmp_path, overrides, key, text):
    found = problem(tmp_path, SERVER, *overrides)
    assert (found.key, text in found.message) == (key, True)


@pytest.mark.parametrize("mode", ["barrier", "refresh"])
def test_a_router_of_its_own_goes_with_modes_that_need_no_pinning(tmp_path, mode):
    load(tmp_path, SERVER, URLS, 'serving.router="http://a:1"', f'serving.publication_mode="{mode}"')


def test_a_key_is_for_servers_that_are_there(tmp_path):
    assert section(tmp_path, SERVER, URLS, 'serving.api_key_env="KEY"').api_key_env == "KEY"


def test_a_variable_without_a_key_is_told_before_the_run(tmp_path, monkeypatch):
    run = load(tmp_path, SERVER, URLS, 'serving.api_key_env="KEY_OF_SERVERS"')
    monkeypatch.delenv("KEY_OF_SERVERS", raising=False)
    (found,) = run.get(ServingSection).validate_files(run, thorough=False)
    assert (found.key, found.message) == ("serving.api_key_env", "the variable KEY_OF_SERVERS is not set")
    monkeypatch.setenv("KEY_OF_SERVERS", "key")
    assert not list(run.get(ServingSection).validate_files(run, thorough=False))


def test_a_python_that_is_no_program_is_told_before_the_run(tmp_path):
    run = load(tmp_path, SERVER, f'serving.python="{tmp_path}/bin/python"')
    (found,) = run.get(ServingSection).validate_files(run, thorough=False)
    assert found.key == "serving.python" and "is no program" in found.message
