"""SGLang's routes for pauses, the cache, and the name and the bytes of what is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from reroll.serving.http.answers import json, outcome, parsed
from reroll.serving.http.bodies import Body
from reroll.serving.http.served import Served
from reroll.workers.together import uninterrupted

if TYPE_CHECKING:
    from aiohttp import web

POLL_SECONDS = 0.05

Handler = Callable[["web.Request"], Coroutine[Any, Any, "web.Response"]]


class Pause(Body):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class Continue(Body):
    torch_empty_cache: bool = True
    """There is no such cache on a CPU."""


class NewVersion(Body):
    new_version: str
    abort_all_requests: bool = True


class Checker(Body):
    not_built = {"allow_quant_error": False, "skip_tensor_list": None}

    action: Literal["checksum"] = "checksum"
    selector: Literal["all", "target"] = "all"


def routes(served: Served) -> dict[tuple[str, str], Handler]:
    """(method, path) → handler."""

    async def pause(request: web.Request) -> web.Response:
        body = await parsed(request, Pause)
        async with served.gate.pause():
            await _pause(served, body.mode)
        return json({"message": "Generation paused successfully.", "status": "ok"})

    async def reopen(request: web.Request) -> web.Response:
        await parsed(request, Continue)
        async with served.gate.reopen():
            await served.engine.resume()
        return json({"message": "Generation continued successfully.", "status": "ok"})

    async def flush(request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            timeout = float(request.query.get("timeout", "0"))
        except ValueError:
            timeout = -1.0
        if not 0 <= timeout < float("inf"):
            return json({"message": f"timeout is {request.query['timeout']!r}; give seconds from 0 on"}, 400)
        if await flush_cache(served, timeout):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed.\n", status=400)

    async def new_version(request: web.Request) -> web.Response:
        body = await parsed(request, NewVersion)
        if body.abort_all_requests:
            await served.abort_all()
        await served.rename(body.new_version)
        message = f"Weight version updated to {body.new_version}"
        return json({"success": True, "message": message, "new_version": body.new_version})

    async def checker(request: web.Request) -> web.Response:
        await parsed(request, Checker)
        digest = await served.engine.weights_digest()
        rank = {"checksums": {"all": digest}, "per_gpu_checksum": digest}
        return outcome(True, "Success.", ranks=[rank], per_engine_checksum=digest)

    async def not_built(request: web.Request) -> web.Response:
        return json({"error": {"message": f"{request.path} is not built into this server"}}, 501)

    return whole(
        {
            "/pause_generation": pause,
            "/continue_generation": reopen,
            "/flush_cache": flush,
            "/update_weight_version": new_version,
            "/weights_checker": checker,
            "/update_weights_from_tensor": not_built,
            "/release_memory_occupation": not_built,
            "/resume_memory_occupation": not_built,
        }
    )


def whole(handlers: dict[str, Handler]) -> dict[tuple[str, str], Handler]:
    """Each runs to its end even if the client leaves: half an update is none."""

    def wrapped(handler: Handler) -> Handler:
        async def run(request: web.Request) -> web.Response:
            return await uninterrupted(handler(request))

        return run

    return {("POST", path): wrapped(handler) for path, handler in handlers.items()}


async def _pause(served: Served, mode: Literal["abort", "retract", "in_place"]) -> None:
    await served.engine.pause(mode)
    if mode == "abort":
        # A request that was on its way to the worker comes after the pause, and would wait in it.
        while not await served.gate.idle(POLL_SECONDS):
            await served.engine.abort()


async def flush_cache(served: Served, timeout: float) -> bool:
    """Drops what the engine has cached, unless something is running, or waits without a pause."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        load = await served.engine.health()
        if not load["running"] and (load["paused"] or not load["queued"]):
            await served.engine.flush_cache()
            return True
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
