"""The server: one engine, its routes, from the first listen to the last answer."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from reroll.api import Engine, EngineError, RerollError, WorkerDied
from reroll.serving.http import chat, control, native, updates
from reroll.serving.http.answers import middleware
from reroll.serving.http.served import Served

if TYPE_CHECKING:
    from aiohttp import web

BODY_BYTES = 64 * 2**20
"""Largest body that is read: a batch of long prompts."""
GOODBYE_SECONDS = 10.0
"""What answers under way get to be written once the server is to end."""


def require_serve_extra() -> None:
    """RerollError unless what the server and its worker import is installed."""
    needed = ("aiohttp", "torch", "transformers", "safetensors", "accelerate")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise RerollError(f"serving needs {', '.join(missing)}: pip install 'reroll[serve]'")


def application(served: Served, key: str) -> web.Application:
    from aiohttp import web

    app = web.Application(middlewares=[middleware(key)], client_max_size=BODY_BYTES)
    for routes in (native.routes(served), control.routes(served), updates.routes(served), chat.routes(served)):
        for (method, path), handler in routes.items():
            app.router.add_route(method, path, handler)
    return app


def quiet_logger() -> logging.Logger:
    """For what handlers did wrong. Nothing is logged of a request, whose headers hold the key: of one that is no HTTP,
    aiohttp would show the line."""
    from aiohttp.http_exceptions import HttpProcessingError
    from aiohttp.web import RequestPayloadError

    def tells_no_request(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | RequestPayloadError))

    logger = logging.getLogger(__name__)
    logger.filters = [tells_no_request]
    return logger


class Stop:
    """Why a server ends: a signal, or the end of its engine or of that one's worker."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.death: EngineError | WorkerDied | None = None

    def died(self, error: EngineError | WorkerDied) -> None:
        self.death = error
        self.wanted.set()

    async def watch(self, engine: Engine) -> None:
        self.died(await engine.lost())

    def on_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.wanted.set)


async def serve(
    served: Served, key: str, sockets: Sequence[socket.socket], stop: Stop, tell: Callable[[str], None]
) -> None:
    """Listens on bound sockets, tells the URL of the first one, and answers until `stop` is wanted.

    Raises:
        OSError: somebody else has begun to listen on an address.
        EngineError, WorkerDied: the engine ended.
    """
    from aiohttp import web

    # A client that leaves ends its request.
    runner = web.AppRunner(
        application(served, key),
        access_log=None,
        logger=quiet_logger(),
        handler_cancellation=True,
        shutdown_timeout=GOODBYE_SECONDS,
    )
    await runner.setup()
    watching = asyncio.create_task(stop.watch(served.engine))
    try:
        sites = [web.SockSite(runner, bound) for bound in sockets]
        for site in sites:
            await site.start()
        address = runner.addresses[0]
        name = f"[{address[0]}]" if ":" in address[0] else address[0]
        tell(f"http://{name}:{address[1]}")
        await stop.wanted.wait()
        for site in sites:
            await site.stop()
        if stop.death is not None:
            raise stop.death
        await _end_requests(served)
    finally:
        watching.cancel()
        # What still waits for the engine, an update perhaps, ends with it.
        served.engine.worker.kill()
        await runner.cleanup()


async def _end_requests(served: Served) -> None:
    """Who waits for tokens gets what there is."""
    with suppress(TimeoutError, EngineError, WorkerDied):
        async with asyncio.timeout(GOODBYE_SECONDS):
            await served.abort_all()
            while served.gate.waiting:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # the answers are written
