"""Real SGLang servers on a CPU, and run files that use them."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from reroll.models.files import resolve_model
from reroll.serving.sglang.launcher import ServerLauncher

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
)
KEY = "a-key-that-only-tests-use"
START_SECONDS = 240


def python():
    """The interpreter of the environment that has SGLang; `hatch run sglang:test` sets it."""
    given = os.environ.get("REROLL_SGLANG_PYTHON")
    assert given, "REROLL_SGLANG_PYTHON must name the python of an environment with SGLang"
    return given


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


def launch(count, folder, *options):
    """Servers that are ready. They start at once, from this thread: with it they would end."""
    servers = []
    for number in range(count):
        log = folder / f"sglang-{number}.log"
        log.touch()
        launcher = ServerLauncher(python(), log)
        arguments = ["--model-path", str(MODEL), "--weight-version", "0", *ON_CPU, *options]
        host, port = launcher.launch(arguments, {"SGLANG_USE_CPU_ENGINE": "1"}, KEY)
        servers.append(RealServer(f"http://{host}:{port}", KEY, log, launcher))
    deadline = time.monotonic() + START_SECONDS
    for server in servers:
        while not server.is_ready():
            assert not server.launcher.ended().done(), server.launcher.ended().result()
            assert time.monotonic() < deadline, server.launcher.last_lines()
            time.sleep(0.5)
    return servers
