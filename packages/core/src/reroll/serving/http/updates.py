"""SGLang's routes for weight updates.

Tensors are staged beside the served ones, so that what an update gets wrong leaves the old weights, whole. Where SGLang
loads a bucket at once, they are served from `/end_weight_update` on.
"""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from reroll.api import EngineError, TensorSpec, WeightBucket, WeightGroup
from reroll.serving.http.answers import outcome, parsed
from reroll.serving.http.bodies import Body
from reroll.serving.http.control import Handler, flush_cache, whole
from reroll.serving.http.served import Served, Session

if TYPE_CHECKING:
    from aiohttp import web

GROUP = "weight_update_group"
"""SGLang's name of a group that gets none."""
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. Retract or "
    "finish them, then call /flush_cache."
)


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


def routes(served: Served) -> dict[tuple[str, str], Handler]:
    """(method, path) → handler."""

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

    return whole(
        {
            "/begin_weight_update": begin,
            "/end_weight_update": end,
            "/init_weights_update_group": init_group,
            "/destroy_weights_update_group": destroy_group,
            "/update_weights_from_distributed": from_distributed,
            "/update_weights_from_disk": from_disk,
        }
    )


async def _attempt(work: Awaitable[None], done: str) -> web.Response:
    try:
        await work
    except EngineError as error:
        return outcome(False, str(error))
    return outcome(True, done)


async def _updated(served: Served, body: Update, message: str, **more: Any) -> web.Response:
    """The answer to an update that succeeded, whose cache may yet fail to be flushed."""
    if body.weight_version is not None:
        message += f" Weight version updated to {body.weight_version}."
    if body.flush_cache and not await flush_cache(served, 0.0):
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
    try:
        files = sorted(folder.glob("*.safetensors"))
    except OSError as error:
        raise EngineError(f"model_path is {str(folder)[:200]!r}, which cannot be read: {error.strerror}") from None
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
            header: Any = json_format.loads(opened.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{file} cannot be read as safetensors: {error}") from None
    return [name for name in header if name != "__metadata__"]
