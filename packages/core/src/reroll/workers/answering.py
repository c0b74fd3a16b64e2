"""What every worker's side does: it makes an object and answers calls to its methods, in the order in which they came.

How calls and answers travel is the business of others: a socket (`serve`), or an actor.
"""

from __future__ import annotations

import importlib
import pickle
import queue
import traceback
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from reroll.workers.frames import PING, Call, Reply, encode

SWITCH_SECONDS = 0.0005
"""Calls come and go through threads beside one that computes without a pause. With the interpreter's own 5 ms each of
a call's few turns would wait that long, more than most calls take."""


class Server:
    """Answers calls in the order they came; a method that gives a Future is answered when it is done.

    One thread runs the object and may take as long as it likes; others hand calls in and take answers out.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def take(self, calls: list[Call]) -> None:
        """Hands calls in. Pings are answered here, so that a worker which is busy still counts as alive, and one that
        is stopped does not."""
        for call in calls:
            if call.method == PING:
                self._reply(call)
            else:
                self._calls.put(call)

    def frame(self) -> bytes:
        """Waits for answers; everything that is ready goes into one frame."""
        batch = [self._replies.get()]
        while not self._replies.empty():
            batch.append(self._replies.get())
        try:
            return encode(batch)
        except Exception:
            return encode([_picklable(reply) for reply in batch])

    def run(self) -> None:
        """Makes the object that the first call names, as `module:Class` with the keyword arguments of the class, and
        answers the others with it. Returns if it could not be made, which the first answer tells."""
        first = self._calls.get()
        try:
            target = load_target(first.method)(*first.arguments, **first.keywords)
        except Exception as error:
            self._reply(first, error=_with_traceback(error))
            return
        self._reply(first)
        while True:
            call = self._calls.get()
            try:
                value = getattr(target, call.method)(*call.arguments, **call.keywords)
            except Exception as error:
                self._reply(call, error=_with_traceback(error))
                continue
            if isinstance(value, Future):
                value.add_done_callback(partial(self._finish, call))
            else:
                self._reply(call, value)

    def _reply(self, call: Call, value: Any = None, error: BaseException | None = None) -> None:
        self._replies.put(Reply(call.id, value, error))

    def _finish(self, call: Call, done: Future[Any]) -> None:
        if done.cancelled():
            self._reply(call, error=RuntimeError(f"{call.method} was cancelled in the worker"))
            return
        error = done.exception()
        if error is not None:
            self._reply(call, error=_with_traceback(error))
        else:
            self._reply(call, done.result())


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
