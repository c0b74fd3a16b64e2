"""Fixtures that suites of several packages share. Everything is imported where it is used: a suite of a plugin runs
without torch, and most without a server."""

import os

import pytest
from hypothesis import settings

# A machine that is busy with something else fails no test; in CI the examples are the same every time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "untimed")


@pytest.fixture(scope="session")
def sglang_servers(tmp_path_factory):
    """Two real SGLang servers that serve the built-in model in float32, for whoever attaches to them."""
    from real_sglang import launch

    folder = tmp_path_factory.mktemp("sglang")
    servers = launch(2, folder, "--dtype", "float32")
    yield servers
    for server in servers:
        server.launcher.stop()


@pytest.fixture
def sglang_server(sglang_servers):
    return sglang_servers[0]
