"""Fixtures that suites of several packages share. Everything is imported where it is used: a suite of a plugin runs
without torch, and most without a server."""

import os

import pytest
from hypothesis import settings

# A machine that is busy with something else fails no test; in CI the examples are the same every time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "untimed")

TOGETHER = {
    "packages/core/tests/contract/test_contract.py": "contract",
    "packages/core/tests/contract/test_serve.py": "serve",
    "tests/test_examples.py": "wheels",
    "tests/test_records.py": "records",
    "tests/test_replay_runs.py": "replay",
    "tests/test_resume.py": "resume",
    "tests/test_tool_runs.py": "tools",
    "tests/test_wheels.py": "wheels",
}
"""Files whose tests share what takes long to make, and what they share it under: one worker runs them all. Any other
test goes to the worker that is free. The scheduler `loadgroup` marks tests in a way that pytest 9.2 does not see."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return TOGETHER.get(nodeid.partition("::")[0], nodeid)

    return Scheduling(config, log)


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
