"""The worker's side as an actor."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from reroll.workers.answering import SWITCH_SECONDS, Server
from reroll.workers.frames import decode


class WorkerActor:
    """Hosts a worker's object: `send` takes frames of calls, `receive` gives frames of answers.

    Ray runs the methods of an actor with several threads in any order. Frames are therefore numbered, and the object
    is run by one thread, as in a process of its own.

    Args:
        log: file for this process's output; None leaves it with Ray.
        devices: GPUs that the process is to see, where Ray has not given them to it alone.
    """

    def __init__(self, log: Path | None, devices: str | None) -> None:
        if log is not None:
            _redirect(log)
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        sys.setswitchinterval(SWITCH_SECONDS)
        self._server = Server()
        self._early: dict[int, bytes] = {}
        self._next = 0
        self._order = threading.Lock()
        threading.Thread(target=self._server.run, name="calls", daemon=True).start()

    def greet(self) -> None:
        """Answered once the process is up."""

    def send(self, number: int, frame: bytes) -> None:
        """Takes frame `number`, counted from 0; one that comes too early waits for those before it."""
        with self._order:
            self._early[number] = frame
            while (following := self._early.pop(self._next, None)) is not None:
                self._next += 1
                self._server.take(_decoded(following))

    def receive(self) -> bytes:
        """The next answers, once there are any."""
        return self._server.frame()


def _decoded(frame: bytes) -> list[Any]:
    try:
        return decode(frame)
    except Exception:
        # Calls that this process cannot read would never be answered: better a death with last words.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _redirect(log: Path) -> None:
    """Sends the output of this process and of its children to the file, if this node can have it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
    except OSError as error:
        print(f"the output stays with Ray: {log} cannot be written on this node: {error}", file=sys.stderr)
