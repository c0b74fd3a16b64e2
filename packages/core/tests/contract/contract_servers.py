"""The two servers that keep one contract, as a client meets them: a URL and a key."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked_commands import ForkedCommand

import reroll

MODEL = Path(reroll.__file__).parent / "models" / "builtin" / "tiny-math"
PYTHON = "REROLL_SGLANG_PYTHON"
"""Variable with the interpreter of an environment that has SGLang."""
REQUIRE = "REROLL_REQUIRE_SGLANG"
HEALTH_SECONDS = 3
"""What both servers wait for a token in `/health_generate`, instead of 20 seconds."""
START_SECONDS = 500
"""SGLang needs twenty on a machine of its own, and minutes on a busy one."""
PROMPT = [305, 72, 101, 108, 108, 111]
LONG = 900
"""Tokens of a response that is still running while the test acts."""


@dataclass
class Server:
    """A running server.

    Attributes:
        kind: `reroll` or `sglang`.
        log: what it has printed.
    """

    kind: str
    url: str
    key: str
    process: subprocess.Popen | ForkedCommand
    log: Path
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    def call(self, path: str, body: Any = None, key: str | None = "", timeout: float = 60) -> tuple[int, Any]:
        """Status and answer; a body makes it a POST. `key`: another one, or None for none at all."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key or self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def post(self, path: str, body: Any = None, expect: int = 200) -> Any:
        """The answer, which must have the status."""
        status, answer = self.call(path, body or {})
        assert status == expect, f"{path}: {status} {answer}"
        return answer

    def get(self, path: str) -> Any:
        status, answer = self.call(path)
        assert status == 200, f"{path}: {status} {answer}"
        return answer

    def generate(self, tokens: int = 8, rid: str | None = None, prompt: Any = None, **sampling: Any) -> Any:
        """The answer of `/generate`; greedy and past EOS tokens unless told otherwise."""
        params = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True, **sampling}
        body = {"input_ids": prompt or PROMPT, "sampling_params": params, "return_logprob": True}
        return self.post("/generate", body if rid is None else {**body, "rid": rid})

    def begin(self, rid: str | None = None, tokens: int = LONG, **sampling: Any) -> Future:
        """A response that has begun: the future of its answer."""
        future = self.threads.submit(self.generate, tokens, rid, **sampling)
        deadline = time.monotonic() + 30
        # Both servers refuse to flush as long as something runs, which is how a client sees that it does.
        while self.call("/flush_cache?timeout=0", {})[0] == 200:
            assert time.monotonic() < deadline, "the request did not begin"
            time.sleep(0.01)
        time.sleep(0.1)
        return future

    @property
    def version(self) -> str:
        return self.get("/model_info")["weight_version"]

    @property
    def checksum(self) -> str:
        """Of the weights that are served."""
        found = self.post("/weights_checker", {"action": "checksum"})
        assert all(rank["checksums"] for rank in found["ranks"])
        return found["per_engine_checksum"]

    def load(self, folder: Path, **options: Any) -> Any:
        body = {"model_path": str(folder), "load_format": "auto", "flush_cache": False, **options}
        return self.post("/update_weights_from_disk", body)

    def stop(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        # SGLang is several processes, all in a group of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM if self.kind == "reroll" else signal.SIGKILL)
        self.process.wait(30)


def impatient() -> None:
    """Sets the one constant that would make a test wait; the rest is the command itself."""
    import reroll.serving.http.native as native

    native.HEALTH_SECONDS = HEALTH_SECONDS


def start_reroll(folder: Path, *options: str, model: str = "builtin:tiny-math", forked: bool = True) -> Server:
    """`forked`: from a process that has the imports. Otherwise it is a command as a user starts it."""
    log = folder / "reroll.log"
    log.touch()
    process: subprocess.Popen | ForkedCommand
    if forked:
        process = ForkedCommand(["serve", model, *options], log, impatient)
    else:
        code = (
            f"import reroll.serving.http.native as native; native.HEALTH_SECONDS = {HEALTH_SECONDS}; "
            "from reroll.cli import main; main()"
        )
        command = [sys.executable, "-u", "-c", code, "serve", model, *options]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    found = _wait(process, log, lambda: re.search(r"at (http://\S+); the key is in (\S+)", log.read_text()))
    return Server("reroll", found[1], Path(found[2]).read_text().strip(), process, log)


def start_sglang(folder: Path, *options: str, device: str = "cpu") -> Server:
    python = os.environ.get(PYTHON)
    assert python, f"{REQUIRE} is set, but {PYTHON} names no interpreter with SGLang"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = "contract-suite-key"
    config = folder / "sglang.yaml"  # a file, since a command line can be read by everybody
    config.touch(mode=0o600)
    config.write_text(f"api-key: {key}\n")
    arguments = {"--model-path": MODEL, "--host": "127.0.0.1", "--port": port, "--config": config, "--dtype": "float32"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    environment["SGLANG_HEALTH_CHECK_TIMEOUT"] = str(HEALTH_SECONDS)
    if device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        arguments |= {"--device": "cpu", "--attention-backend": "torch_native", "--mem-fraction-static": 0.05}
    command = [python, "-m", "sglang.launch_server", "--skip-server-warmup", "--sleep-on-idle"]
    command += [str(part) for pair in arguments.items() for part in pair]
    log = folder / "sglang.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options], stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    server = Server("sglang", f"http://127.0.0.1:{port}", key, process, log)

    def ready() -> bool:
        try:
            return server.call("/model_info")[0] == 200
        except OSError:
            return False

    _wait(process, log, ready)
    return server


def _wait(process: subprocess.Popen | ForkedCommand, log: Path, ready: Any) -> Any:
    """What `ready` gives once it is true; a server that does not come so far is ended."""
    deadline = time.monotonic() + START_SECONDS
    try:
        while not (found := ready()):
            late = time.monotonic() > deadline
            assert process.poll() is None and not late, f"the server did not start:\n{log.read_text()[-2000:]}"
            time.sleep(0.1)
        return found
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
