"""The worker's side as a process of its own: one that answers what comes through a socket.

Started as `python -m reroll.workers.serve FD`. The first message on the socket names the class.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import traceback

from reroll.workers.answering import SWITCH_SECONDS, Server
from reroll.workers.frames import read_frame_blocking


def read_calls(server: Server, connection: socket.socket) -> None:
    """Reader thread. The controller's end closing means that it is gone: so is the worker then,
    whatever its other threads are doing, or it would outlive the run."""
    while True:
        try:
            calls = read_frame_blocking(connection)
        except (EOFError, OSError):
            os._exit(0)
        except Exception:  # what cannot be read leaves the stream useless, and a worker that hears nothing is none
            traceback.print_exc()
            os._exit(1)
        server.take(calls)


def write_replies(server: Server, connection: socket.socket) -> None:
    """Writer thread."""
    while True:
        frame = server.frame()
        try:
            connection.sendall(frame)
        except OSError:
            os._exit(0)


def die_with_parent() -> None:
    """Has the system kill this process with its controller, where it can (Linux).

    A worker also notices by itself that its controller is gone, but not while it is stopped, nor during a call that
    keeps the interpreter lock, and that might never end.
    """
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    # The terminal sends Ctrl-C to every process of the group; the controller decides when workers end.
    # So does a batch system that sends SIGTERM to all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    server, connection = Server(), socket.socket(fileno=int(sys.argv[1]))
    for work in (read_calls, write_replies):
        threading.Thread(target=work, args=(server, connection), name=work.__name__, daemon=True).start()
    server.run()
    threading.Event().wait()  # a failed start waits to be read, then the controller closes the socket


if __name__ == "__main__":
    main()
