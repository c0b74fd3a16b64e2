"""Fixtures that suites of several packages share. Everything is imported where it is used: a suite of a plugin runs
without torch, and most without a server."""

import pytest


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
