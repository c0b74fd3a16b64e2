"""SGLang's routes for pauses and weight updates.

Tensors are staged beside the served ones, so that what an update gets wrong leaves the old weights, whole. Where SGLang
loads a bucket at once, they are served from `/end_weight_update` on.
"""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from reroll.api import EngineError, TensorSpec, WeightBucket, WeightGroup
from reroll.serving.http.answers import json, outcome, parsed
from reroll.serving.http.bodies import Body
from reroll.serving.http.served import Served, Session
from reroll.workers.together import uninterrupted

if TYPE_CHECKING:
    from aiohttp import web

GROUP = "weight_update_group"
"""SGLang's name of a group that gets none."""
POLL_SECONDS = 0.05
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. Retract or "
    "finish them, then call /flush_cache."
)


class Pause(Body):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class Continue(Body):
    torch_empty_cache: bool = True
    """There is no such cache on a CPU."""


class Begin(Body):
    selector: Literal["all", "target"] = "all"
    """The embedded engine has no draft model."""


class Empty(Body):
    pass


class InitGroup(Body):
    master_address: str
    master_port: int = Field(ge=1, le=65535)
    rank_offset: int
    world_size: int = Field(ge=2)
    group_name: str = GROUP
    backend: Literal["gloo", "nccl"] = "nccl"


class DestroyGroup(Body):
    group_name: str = GROUP


class Update(Body):
    """What every update takes."""

    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    torch_empty_cache: bool = False
    """There is no such cache on a CPU."""


class FromDistributed(Update):
    names: list[str] = Field(min_length=1)
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = GROUP
    load_format: Literal["flattened_bucket"] | None = None
    selector: Literal["all", "target"] = "all"


class FromDisk(Update):
    not_built = {"is_async": False, "keep_pause": False, "recapture_cuda_graph": False, "manifest": None}

    model_path: str
    load_format: Literal["auto", "safetensors"] | None = None
    token_step: int = 0
    """For the caller's own books, as in SGLang."""


class NewVersion(Body):
    new_version: str
    abort_all_requests: bool = True


class Checker(Body):
    not_built = {"allow_quant_error": False, "skip_tensor_list": None}

    action: Literal["checksum"] = "checksum"
    selector: Literal["all", "target"] = "all"


Handler = Callable[["web.Request"], Coroutine[Any, Any, "web.Response"]]


def routes(served: Served) -> dict[tuple[str, str], Handler]:
    """(method, path) → handler. Each runs to its end even if the client leaves: half an update is none."""

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
        if await _flush(served, timeout):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed.\n", status=400)

    async def begin(request: web.Request) -> web.Response:
        await parsed(request, Begin)
        async with served.gate.update():
            if served.session is not None:
                return outcome(False, "a weight-update session is already open; call end_weight_update() first")
            served.session = Session()
        return outcome(True, "Success")

    async def end(request: web.Request) -> web.Response:
        await parsed(request, Empty)
        async with served.gate.update():
            return await _end(served)

    async def init_group(request: web.Request) -> web.Response:
        body = await parsed(request, InitGroup)
        if body.rank_offset != 1:
            return outcome(
                False, f"rank_offset is {body.rank_offset}, but the engine is rank 1 beside the trainer; give it 1"
            )
        group = WeightGroup(body.group_name, body.master_address, body.master_port, body.world_size, body.backend)
        return await _attempt(served.engine.join_weight_group(group), "Succeeded to initialize custom process group.")

    async def destroy_group(request: web.Request) -> web.Response:
        body = await parsed(request, DestroyGroup)
        return await _attempt(
            served.engine.leave_weight_group(body.group_name), "Succeeded to destroy custom process group."
        )

    async def from_distributed(request: web.Request) -> web.Response:
        body = await parsed(request, FromDistributed)
        if not len(body.names) == len(body.dtypes) == len(body.shapes):
            counts = f"{len(body.names)}, {len(body.dtypes)} and {len(body.shapes)}"
            return outcome(False, f"names, dtypes and shapes have {counts} entries; give one each for every tensor")
        if body.abort_all_requests:
            await served.abort_all()
        async with served.gate.update():
            return await _from_distributed(served, body)

    async def from_disk(request: web.Request) -> web.Response:
        body = await parsed(request, FromDisk)
        if body.abort_all_requests:
            await served.abort_all()
        async with served.gate.update():
            return await _from_disk(served, body)

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
        return outcome(True, "Success.", ranks=[{"per_gpu_checksum": digest}], per_engine_checksum=digest)

    async def not_built(request: web.Request) -> web.Response:
        return json({"error": {"message": f"{request.path} is not built into this server"}}, 501)

    def whole(handler: Handler) -> Handler:
        async def run(request: web.Request) -> web.Response:
            return await uninterrupted(handler(request))

        return run

    found = {
        "/pause_generation": pause,
        "/continue_generation": reopen,
        "/flush_cache": flush,
        "/begin_weight_update": begin,
        "/end_weight_update": end,
        "/init_weights_update_group": init_group,
        "/destroy_weights_update_group": destroy_group,
        "/update_weights_from_distributed": from_distributed,
        "/update_weights_from_disk": from_disk,
        "/update_weight_version": new_version,
        "/weights_checker": checker,
        "/update_weights_from_tensor": not_built,
        "/release_memory_occupation": not_built,
        "/resume_memory_occupation": not_built,
    }
    return {("POST", path): whole(handler) for path, handler in found.items()}


async def _attempt(work: Awaitable[None], done: str) -> web.Response:
    try:
        await work
    except EngineError as error:
        return outcome(False, str(error))
    return outcome(True, done)


async def _pause(served: Served, mode: Literal["abort", "retract", "in_place"]) -> None:
    await served.engine.pause(mode)
    if mode == "abort":
        # A request that was on its way to the worker comes after the pause, and would wait in it.
        while not await served.gate.idle(POLL_SECONDS):
            await served.engine.abort()


async def _flush(served: Served, timeout: float) -> bool:
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


async def _updated(served: Served, body: Update, message: str, **more: Any) -> web.Response:
    """The answer to an update that succeeded, whose cache may yet fail to be flushed."""
    if body.weight_version is not None:
        message += f" Weight version updated to {body.weight_version}."
    if body.flush_cache and not await _flush(served, 0.0):
        return outcome(False, NOT_FLUSHED, **more)
    return outcome(True, message, **more)


async def _end(served: Served) -> web.Response:
    session, served.session = served.session, None
    if session is None:
        return outcome(False, "no weight-update session is open; call begin_weight_update() first")
    if session.staged:
        try:
            await served.commit(session.version)
        except EngineError as error:
            return outcome(False, f"{error}. The weights are as they were before the session")
    elif session.version is not None:
        await served.rename(session.version)
    return outcome(True, "Success")


async def _from_distributed(served: Served, body: FromDistributed) -> web.Response:
    if served.session is None:
        return outcome(
            False, "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
        )
    bucket = [
        TensorSpec(name, dtype, tuple(shape))
        for name, dtype, shape in zip(body.names, body.dtypes, body.shapes, strict=True)
    ]
    try:
        await served.engine.receive_bucket(body.group_name, bucket, body.load_format == "flattened_bucket")
    except EngineError as error:
        return outcome(False, f"Failed to receive weights: {error}")
    served.session.staged = True
    if body.weight_version is not None:
        await served.rename(body.weight_version)
    return await _updated(served, body, "Succeeded to update parameter online.")


async def _from_disk(served: Served, body: FromDisk) -> web.Response:
    if served.session is not None and served.session.staged:
        return outcome(
            False,
            "a weight-update session holds tensors that are not served yet; call end_weight_update() first",
            num_paused_requests=0,
        )
    try:
        await served.engine.stage_weights(await asyncio.to_thread(_buckets, Path(body.model_path)))
        await served.commit(body.weight_version)
    except EngineError as error:
        return outcome(False, str(error), num_paused_requests=0)
    return await _updated(served, body, "Succeeded to update model weights.", num_paused_requests=0)


def _buckets(folder: Path) -> list[WeightBucket]:
    """The folder's files, with the names that they hold."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"model_path is {str(folder)!r}, which holds no *.safetensors; give a folder with weights")
    return [WeightBucket(str(file), tuple(_names(file)), file.stat().st_size) for file in files]


def _names(file: Path) -> list[str]:
    """Read from the header alone: the tensors are the worker's to read."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json_format.loads(opened.read(length))
    except (OSError, ValueError) as error:
        raise EngineError(f"{file} cannot be read as safetensors: {error}") from None
    return [name for name in header if name != "__metadata__"]
