"""The worker that launches an SGLang server where it runs, and answers for its processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from reroll.api import EngineError
from reroll.serving.sglang.command import launch_command
from reroll.workers.host import interface_of, own_host
from reroll.workers.process import describe_exit, last_lines


class ServerLauncher:
    """One server at a time. What the controller calls; see `reroll.workers.serve`.

    Args:
        python: interpreter of the environment that has SGLang.
        log: file that receives the server's output.
    """

    def __init__(self, python: str, log: Path) -> None:
        self.python = python
        self.log = log
        self._process: subprocess.Popen[str] | None = None
        self._stopping = False
        self._folder: str | None = None
        self._ended: Future[str] = Future()

    def launch(self, arguments: Sequence[str], environment: Mapping[str, str], key: str) -> tuple[str, int]:
        """Starts the server and gives the address on which it listens, though it may not answer for a while."""
        self.stop()
        host = own_host()
        self._folder = tempfile.mkdtemp(prefix="reroll-sglang-")
        self._stopping, self._ended = False, Future()
        read, write = os.pipe()
        try:
            with self.log.open("ab") as output:
                self._process = self._spawn(write, output, {**_surroundings(host, self._folder), **environment})
        except OSError as error:
            os.close(read)
            raise EngineError(
                f"SGLang cannot be started with {self.python}: {error}; set serving.python to the interpreter of an "
                "environment that has it"
            ) from error
        finally:
            os.close(write)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # one that died says why in its log
            json.dump({"host": host, "port": 0, "arguments": list(arguments), "key": key}, pipe)
        threading.Thread(target=self._watch, args=(self._process, self._ended), daemon=True).start()
        with os.fdopen(read) as told:
            port = told.readline().strip()
        if not port:
            raise EngineError(f"the SGLang server {self._ended.result()}")
        return host, int(port)

    def _spawn(self, pipe: int, output: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            launch_command(self.python, str(pipe)),
            pass_fds=[pipe],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,  # so that all of its processes can be ended together
            text=True,
        )

    def _watch(self, process: subprocess.Popen[str], ended: Future[str]) -> None:
        how = describe_exit(process.wait())
        _kill_session(process)
        words = "" if self._stopping else last_lines(self.log)
        ended.set_result(how + (f"; its last words:\n{words}" if words else ""))

    def ended(self) -> Future[str]:
        """Answered when the server has ended: how, and with which last words."""
        return self._ended

    def last_lines(self) -> str:
        """The end of the server's output."""
        return last_lines(self.log)

    def stop(self) -> None:
        """Ends the server and whatever it started."""
        self._stopping = True
        if self._process is not None:
            _kill_session(self._process)
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _kill_session(process: subprocess.Popen[str]) -> None:
    """The server's processes, which live in a session of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _surroundings(host: str, folder: str) -> dict[str, str]:
    """What keeps a server to itself: its ranks meet through a file instead of a port that listens on every interface,
    and its process groups use the interface of its address."""
    found = {
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{folder}/ranks",
        "HF_HUB_OFFLINE": "1",
    }
    if interface := interface_of(host):
        found |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return found
