"""The worker's side: one process that makes an object and answers calls to its methods.

Started as `python -m reroll.workers.serve FD`. The first message on the socket names the class.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from reroll.workers.frames import PING, Call, Reply, encode, read_frame_blocking


class Server:
    """Answers calls in the order they came; a method that gives a Future is answered when it is done."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.calls: queue.SimpleQueue[list[Call]] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def read_calls(self) -> None:
        """Reader thread. The controller's end closing means that it is gone: so is the worker then,
        whatever its other threads are doing, or it would outlive the run."""
        while True:
            try:
                calls = read_frame_blocking(self.connection)
            except (EOFError, OSError):
                os._exit(0)
            # Answered here, so that a worker which is busy still counts as alive, and one that is stopped does not.
            for call in calls:
                if call.method == PING:
                    self.reply(call)
            self.calls.put([call for call in calls if call.method != PING])

    def write_replies(self) -> None:
        """Writer thread: everything that is ready goes into one frame."""
        while True:
            batch = [self.replies.get()]
            while not self.replies.empty():
                batch.append(self.replies.get())
            try:
                self.connection.sendall(self._encode(batch))
            except OSError:
                os._exit(0)

    @staticmethod
    def _encode(batch: list[Reply]) -> bytes:
        try:
            return encode(batch)
        except Exception:
            return encode([_picklable(reply) for reply in batch])

    def reply(self, call: Call, value: Any = None, error: BaseException | None = None) -> None:
        self.replies.put(Reply(call.id, value, error))

    def run(self, target: object) -> None:
        while True:
            for call in self.calls.get():
                try:
                    value = getattr(target, call.method)(*call.arguments, **call.keywords)
                except Exception as error:
                    self.reply(call, error=_with_traceback(error))
                    continue
                if isinstance(value, Future):
                    value.add_done_callback(partial(self._finish, call))
                else:
                    self.reply(call, value)

    def _finish(self, call: Call, done: Future[Any]) -> None:
        if done.cancelled():
            self.reply(call, error=RuntimeError(f"{call.method} was cancelled in the worker"))
            return
        error = done.exception()
        if error is not None:
            self.reply(call, error=_with_traceback(error))
        else:
            self.reply(call, done.result())


def _with_traceback(error: BaseException) -> BaseException:
    """The error, or a plain one that says the same where the controller could not make it again. Keeps where it
    happened as a note: a traceback itself cannot be sent."""
    note = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _picklable(reply: Reply) -> Reply:
    try:
        pickle.dumps(reply)
        return reply
    except Exception as failure:
        return Reply(reply.id, None, RuntimeError(f"the result cannot be sent: {failure}"))


def load_target(path: str) -> type:
    """The class that `module:Class` names."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return cast(type, found)


def die_with_parent() -> None:
    """Has the system kill this process with its controller, where it can (Linux).

    A worker also notices by itself that its controller is gone, but not while it is stopped, nor during a call that
    keeps the interpreter lock, and that might never end.
    """
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


SWITCH_SECONDS = 0.0005
"""Calls come and go through threads beside one that computes without a pause. With the interpreter's own 5 ms each of
a call's few turns would wait that long, more than most calls take."""


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    # The terminal sends Ctrl-C to every process of the group; the controller decides when workers end.
    # So does a batch system that sends SIGTERM to all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    server = Server(socket.socket(fileno=int(sys.argv[1])))
    (first,) = read_frame_blocking(server.connection)
    threading.Thread(target=server.read_calls, name="read-calls", daemon=True).start()
    threading.Thread(target=server.write_replies, name="write-replies", daemon=True).start()
    try:
        target = load_target(first.method)(*first.arguments, **first.keywords)
    except Exception as error:
        server.reply(first, error=_with_traceback(error))
    else:
        server.reply(first)
        server.run(target)
    server.calls.get()  # a failed start waits to be read, then the controller closes the socket


if __name__ == "__main__":
    main()
