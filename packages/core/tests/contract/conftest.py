"""Every test of the contract runs against `reroll serve`, and against SGLang where there is one.

`REROLL_SGLANG_PYTHON` names the interpreter of an environment with SGLang; without it those runs are deselected, or
fail with `REROLL_REQUIRE_SGLANG=1`. Each server is started once a session.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from contract_servers import MODEL, PYTHON, REQUIRE, Server, start_reroll, start_sglang  # noqa: E402


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        kinds = ["reroll", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.timeout(600)])]
        metafunc.parametrize("server", kinds, indirect=True)


def pytest_collection_modifyitems(config, items):
    if os.environ.get(PYTHON) or os.environ.get(REQUIRE) == "1":
        return
    absent = [item for item in items if HERE in item.path.parents and item.get_closest_marker("sglang")]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in set(absent)]


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Gives the server of a kind, started when it is first asked for."""
    started: dict[str, Server] = {}
    failed: dict[str, BaseException] = {}

    def get(kind):
        if kind in failed:
            raise failed[kind]
        if kind not in started:
            try:
                start = start_reroll if kind == "reroll" else start_sglang
                started[kind] = start(tmp_path_factory.mktemp(kind))
            except BaseException as error:
                failed[kind] = error
                raise
        return started[kind]

    yield get
    for server in started.values():
        server.stop()


@pytest.fixture
def clean(weights):
    """Brings a server back to how it was started."""

    def bring_back(server):
        server.call("/abort_request", {"abort_all": True})
        server.call("/end_weight_update", {})
        server.call("/continue_generation", {})
        server.load(weights["base"])
        server.post("/update_weight_version", {"new_version": "default"})

    return bring_back


@pytest.fixture
def server(request, servers, clean):
    found = servers(request.param)
    yield found
    clean(found)


@pytest.fixture(scope="session")
def tensors():
    """Name of a set of weights → its tensors: those that the servers began with, and others."""
    from safetensors.torch import load_file

    base = load_file(MODEL / "model.safetensors")
    return {"base": base, "other": {name: tensor * 1.25 for name, tensor in base.items()}}


@pytest.fixture(scope="session")
def weights(tensors, tmp_path_factory):
    """Name of a set of weights → a folder with them, in two files."""
    from safetensors.torch import save_file

    folders = {}
    for name, found in tensors.items():
        folders[name] = tmp_path_factory.mktemp(name)
        names = list(found)
        for number, part in enumerate((names[:5], names[5:])):
            save_file({key: found[key] for key in part}, folders[name] / f"bucket-{number:05}.safetensors")
    return folders
