"""Starts an SGLang server in SGLang's own environment, which need not have reroll: this file is run by its path.

SGLang's command line takes a port that must be free, and a key that every user of the machine could read. So
the launcher sends key and options over stdin, and the port is bound here, then told through the pipe that the first
argument names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

BACKLOG = 4096
GUARD_SECONDS = 0.5


def die_with_parent() -> None:
    """The launcher ends the server; where it cannot any more, the system does (Linux)."""
    set_parent_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def guard_session() -> None:
    """Ends what the server started once it is gone itself, though its launcher may be gone as well.

    SGLang's processes ask the system for that as they begin to work. One whose parent is gone by then would wait for
    its first message for ever.
    """
    server = os.getpid()
    # Before anything is imported or opened, so that the guard is small and holds nothing of the server's.
    if os.getpgrp() != server or os.fork():
        return
    while os.getppid() == server:
        time.sleep(GUARD_SECONDS)
    os.killpg(server, signal.SIGKILL)


def main() -> None:
    die_with_parent()
    guard_session()
    given: dict[str, Any] = json.load(sys.stdin)
    family = socket.AF_INET6 if ":" in given["host"] else socket.AF_INET
    listener = socket.create_server((given["host"], given["port"]), family=family, backlog=BACKLOG)
    port = listener.getsockname()[1]
    with open(int(sys.argv[1]), "w") as told:
        told.write(f"{port}\n")

    import uvicorn
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    # SGLang has uvicorn bind the port by itself; it is bound already.
    uvicorn.Server.run = partial_method(uvicorn.Server.run, sockets=[listener])
    hide_in_logs(given["key"])
    load_plugins()
    arguments = prepare_server_args(server_arguments(given["arguments"], given["host"], str(port)))
    arguments.api_key = given["key"]
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def server_arguments(arguments: list[str], host: str, port: str) -> list[str]:
    """What SGLang's parser reads."""
    return [*arguments, "--host", host, "--port", port]


def hide_in_logs(key: str) -> None:
    """SGLang logs all of its arguments as it starts, the key among them."""
    make = logging.getLogRecordFactory()

    def make_hidden(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*arguments, **keywords)
        with contextlib.suppress(Exception):  # a message that cannot be formatted is the logger's to tell
            if key in (text := record.getMessage()):
                record.msg, record.args = text.replace(key, "(hidden)"), ()
        return record

    logging.setLogRecordFactory(make_hidden)


def partial_method(function: Any, **keywords: Any) -> Any:
    def method(self: Any, *arguments: Any) -> Any:
        return partial(function, **keywords)(self, *arguments)

    return method


if __name__ == "__main__":  # SGLang's processes import the main module again
    main()
