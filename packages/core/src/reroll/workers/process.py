"""The controller's side: a child process whose methods are awaited."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from reroll.api import WorkerDied, WorkerSpec
from reroll.workers.frames import PING, Call, Reply, encode, read_frame

LAST_WORDS = 12
"""Lines of a dead worker's output that its error repeats."""
PING_SECONDS = 5.0
MISSED_PINGS = 4
STARTING_PINGS = 24
"""A worker that answers no ping for so many intervals is given up. Intervals are counted instead of seconds, so that
a machine which slept does not kill its workers when it wakes. Before its first answer, while the interpreter starts,
it has `STARTING_PINGS` of them."""


class ProcessWorker:
    """A worker in a child process on this machine.

    Calls made in one turn of the event loop travel in one frame, in order, so that a worker which
    receives them sees them together.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: Path,
        keep_log: bool,
    ) -> None:
        self.name = name
        self.process = process
        self.log = log
        self._keep_log = keep_log
        self._writer = streams[1]
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outgoing: list[Call] = []
        self._died: WorkerDied | None = None
        self._closing = False
        self._given_up = ""
        self.on_death: Callable[[WorkerDied], None] | None = None
        """Called once if the worker ends without having been asked to."""
        self._reading = asyncio.create_task(self._read(streams[0]), name=f"read {name}")
        self._pinging = asyncio.create_task(self._ping(), name=f"ping {name}")

    @classmethod
    async def start(cls, spec: WorkerSpec) -> ProcessWorker:
        """Starts the process and waits until its object is made; raises what making it raised."""
        ours, theirs = socket.socketpair()
        log, keep = (spec.log, True) if spec.log else (_temporary_log(spec.name), False)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, theirs:
            process = _spawn(spec, theirs, output)
        worker = cls(spec.name, process, await asyncio.open_unix_connection(sock=ours), log, keep)
        try:
            await worker._send(spec.target, (), dict(spec.arguments))
        except BaseException:
            await worker.close(timeout=0)
            raise
        return worker

    def call(self, method: str, *arguments: Any, **keywords: Any) -> asyncio.Future[Any]:
        return self._send(method, arguments, keywords)

    def _send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._died is not None:
            future.set_exception(self._died)
            return future
        call = Call(next(self._ids), method, arguments, keywords)
        self._waiting[call.id] = future
        if not self._outgoing:
            loop.call_soon(self._flush)
        self._outgoing.append(call)
        return future

    def _flush(self) -> None:
        calls, self._outgoing = self._outgoing, []
        try:
            self._writer.write(encode(calls))
        except Exception as error:  # an argument that cannot be pickled
            for call in calls:
                self._resolve(Reply(call.id, None, error))

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
            self.kill()
            await self._mourn(f"; its reply could not be read: {type(error).__name__}: {error}")

    async def _ping(self) -> None:
        """Notices a worker that neither lives nor dies: stopped, or stuck outside of Python."""
        missed, limit = 0, STARTING_PINGS
        while missed < limit:
            await asyncio.sleep(PING_SECONDS)
            if self._died is not None:
                return
            pong = self._send(PING, (), {})
            pong.add_done_callback(lambda done: done.cancelled() or done.exception())  # a death is told elsewhere
            await asyncio.wait([pong], timeout=PING_SECONDS)
            missed, limit = (0, MISSED_PINGS) if pong.done() else (missed + 1, limit)
        # Noted before the kill: the connection closes with it, and whoever reads it may be the first to mourn.
        self._given_up = f" after it had not answered for {2 * PING_SECONDS * limit:g} s"
        self.kill()
        await self._mourn()

    def _resolve(self, reply: Reply) -> None:
        future = self._waiting.pop(reply.id, None)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    async def _mourn(self, why: str = "") -> None:
        """Every waiting call fails with the worker's name and its last words. The first reason stays."""
        code = await _wait(self.process, 5.0)
        how = "is still running without a connection" if code is None else describe_exit(code)
        words = "" if self._closing else last_lines(self.log)
        if self._died is not None:
            return
        self._died = WorkerDied(
            self.name, f"{how}{self._given_up}{why}" + (f"; its last words:\n{words}" if words else "")
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._died)
        self._waiting.clear()
        if not self._closing and self.on_death is not None:
            self.on_death(self._died)

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
