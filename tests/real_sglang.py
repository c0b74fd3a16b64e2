"""Real SGLang servers on a CPU, and run files that use them."""

import json
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from reroll.models.files import resolve_model
from reroll.serving.sglang.launcher import ServerLauncher
from reroll.serving.sglang.server import ServerSettings

MODEL = resolve_model("builtin:tiny-math").directory
ON_CPU = (
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--mem-fraction-static",
    "0.1",
    "--max-total-tokens",
    "65536",
    # Without it an idle server keeps a core busy, of which others that run here have need.
    "--sleep-on-idle",
)
KEY = "a-key-that-only-tests-use"
START_SECONDS = 240


def python():
    """The interpreter of the environment that has SGLang; `hatch run sglang:test` sets it."""
    given = os.environ.get("REROLL_SGLANG_PYTHON")
    assert given, "REROLL_SGLANG_PYTHON must name the python of an environment with SGLang"
    return given


def settings(placement, log, **changes):
    """Of an engine on a server of the built-in model, launched on a CPU unless `url` says where one runs."""
    given = {
        "name": "engine-0",
        "model_directory": MODEL,
        "version": 0,
        "placement": placement,
        "log": log,
        "url": None,
        "key": KEY,
        "router": None,
        "python": os.environ.get("REROLL_SGLANG_PYTHON", ""),
        "arguments": ("--model-path", str(MODEL), "--weight-version", "0", *ON_CPU),
        "environment": {"SGLANG_USE_CPU_ENGINE": "1"},
        "ranks": 1,
        "device": "cpu",
        "connections": 64,
        "startup_timeout": 200.0,
        "health_interval": 1.0,
        "health_timeout": 25.0,
        "request_timeout": None,
    }
    return ServerSettings(**{**given, **changes})


@dataclass
class RealServer:
    url: str
    key: str
    log: Path
    launcher: ServerLauncher

    def status(self, path, key=None):
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        try:
            with urlopen(Request(self.url + path, headers=headers), timeout=30) as answer:
                return answer.status
        except HTTPError as error:
            return error.code

    def is_ready(self):
        try:
            return self.status("/health") == 200
        except OSError:
            return False


def servers_of(pid):
    """Ids of the servers that a process, or one of its children, has launched: each leads a session of its own."""
    return [
        child.pid
        for child in psutil.Process(pid).children(recursive=True)
        if "bootstrap.py" in " ".join(child.cmdline()) and os.getsid(child.pid) == child.pid
    ]


def launch(count, folder, *options, **environment):
    """Servers that are ready. They start at once, from this thread: with it they would end."""
    servers = []
    for number in range(count):
        log = folder / f"sglang-{number}.log"
        log.touch()
        launcher = ServerLauncher(python(), log)
        arguments = ["--model-path", str(MODEL), "--weight-version", "0", *ON_CPU, *options]
        host, port = launcher.launch(arguments, {"SGLANG_USE_CPU_ENGINE": "1", **environment}, KEY)
        servers.append(RealServer(f"http://{host}:{port}", KEY, log, launcher))
    deadline = time.monotonic() + START_SECONDS
    for server in servers:
        while not server.is_ready():
            assert not server.launcher.ended().done(), server.launcher.ended().result()
            assert time.monotonic() < deadline, server.launcher.last_lines()
            time.sleep(0.5)
    return servers


ROUTER = """
import json, sys
from sglang_router.launch_router import launch_router
from sglang_router.router_args import RouterArgs
launch_router(RouterArgs(**json.load(sys.stdin)))
"""
"""SGLang's router as its own command starts it, but for the key, which stays off the command line."""


@contextmanager
def routed(servers, folder, **options):
    """URL of SGLang's router in front of servers, once it has found all of them well."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:  # the router takes no socket, and a port of its own for metrics
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    arguments = {
        "worker_urls": [server.url for server in servers],
        "host": "127.0.0.1",
        "port": ports[0],
        "prometheus_host": "127.0.0.1",
        "prometheus_port": ports[1],
        "policy": "round_robin",
        "api_key": servers[0].key,
        "worker_startup_check_interval": 1,
        **options,
    }
    with (folder / "router.log").open("wb") as log:
        router = subprocess.Popen([python(), "-c", ROUTER], stdin=subprocess.PIPE, stdout=log, stderr=log)
    with router.stdin as pipe:
        pipe.write(json.dumps(arguments).encode())
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        deadline = time.monotonic() + 60
        while len(well(url)) != len(servers):
            assert router.poll() is None and time.monotonic() < deadline, (folder / "router.log").read_text()[-2000:]
            time.sleep(0.2)
        yield url
    finally:
        router.kill()
        router.wait()


def well(router):
    """URLs of the servers that a router sends requests to."""
    try:
        with urlopen(Request(f"{router}/workers", headers={"Authorization": f"Bearer {KEY}"}), timeout=10) as answer:
            return {worker["url"] for worker in json.load(answer)["workers"] if worker["is_healthy"]}
    except OSError:
        return set()
