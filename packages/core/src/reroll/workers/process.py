"""The controller's side: a child process whose methods are awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from reroll.api import WorkerSpec
from reroll.workers.calling import CallingWorker
from reroll.workers.frames import read_frame

LAST_WORDS = 12
"""Lines of a dead worker's output that its error repeats."""


class ProcessWorker(CallingWorker):
    """A worker in a child process on this machine."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: Path,
        keep_log: bool,
    ) -> None:
        super().__init__(name)
        self.process = process
        self.log = log
        self._keep_log = keep_log
        self._writer = streams[1]
        self._reading = asyncio.create_task(self._read(streams[0]), name=f"read {name}")

    @classmethod
    async def start(cls, spec: WorkerSpec) -> ProcessWorker:
        """Starts the process and waits until its object is made; raises what making it raised."""
        ours, theirs = socket.socketpair()
        log, keep = (spec.log, True) if spec.log else (_temporary_log(spec.name), False)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, theirs:
            process = _spawn(spec, theirs, output)
        worker = cls(spec.name, process, await asyncio.open_unix_connection(sock=ours), log, keep)
        await worker._make(spec)
        return worker

    def _transmit(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                for reply in await read_frame(reader):
                    self._resolve(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._mourn()
        except Exception as error:
            # A reply that this process cannot read leaves the stream useless: better one death with a name than
            # calls that wait for ever.
            self.given_up = f"; its reply could not be read: {type(error).__name__}: {error}"
            self.kill()
            await self._mourn()

    async def _how_it_ended(self) -> tuple[str, str]:
        code = await _wait(self.process, 5.0)
        how = "is still running without a connection" if code is None else describe_exit(code)
        return how, last_lines(self.log)

    async def close(self, timeout: float = 10.0) -> None:
        """Closes the connection, at which a worker ends by itself; kills it after `timeout` seconds."""
        self._closing = True
        self._pinging.cancel()
        self._writer.close()
        if await _wait(self.process, timeout) is None:
            self.kill()
            await _wait(self.process, 5.0)
        await asyncio.gather(self._reading, return_exceptions=True)
        if not self._keep_log:
            self.log.unlink(missing_ok=True)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()


def _spawn(spec: WorkerSpec, connection: socket.socket, output: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "reroll.workers.serve", str(connection.fileno())]
    return subprocess.Popen(
        command,
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, **spec.environment},
    )


def _temporary_log(name: str) -> Path:
    handle, path = tempfile.mkstemp(prefix=f"reroll-{name}-", suffix=".log")
    os.close(handle)
    return Path(path)


async def _wait(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The exit code, or None after `timeout` seconds. Polls: a child watcher would need the main thread."""
    deadline = asyncio.get_running_loop().time() + timeout
    while (code := process.poll()) is None:
        if asyncio.get_running_loop().time() >= deadline:
            return None
        await asyncio.sleep(0.01)
    return code


def describe_exit(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def last_lines(log: Path, count: int = LAST_WORDS) -> str:
    """The end of a log file; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
