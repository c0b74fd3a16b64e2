"""The transport that broadcasts weights from trainer rank 0, in one process group for each engine."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from reroll.api import CommitCost, Config, Engine, RerollError, TensorSpec, Transport, WeightGroup, WeightSource

if TYPE_CHECKING:
    from reroll.publication.lockstep import Lockstep  # with asyncio, for which `plan` must not wait

LEAVE_SECONDS = 10.0
"""What leaving a group may take beyond its time-out, within which everything that waits in it ends."""
CLOSE_SECONDS = 5.0
"""What leaving a group may take at the end of a run."""


class DistributedTransportConfig(Config):
    update_weight_buffer_size: int = Field(512 * 1024**2, gt=0)
    """Bytes of tensors in one bucket; trainer rank 0 and every engine hold one beside their weights."""
    weight_sync_mode: Literal["flattened", "per_tensor"] = "flattened"
    """A bucket is broadcast as one tensor of bytes, or every tensor by itself, which needs no copy on the trainer's
    side but costs many small messages."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """What the process groups run on; `auto` is `nccl` where trainer and engine both have their weights on CUDA
    devices, and `gloo` elsewhere."""
    timeout: float = Field(60.0, gt=0)
    """Seconds that meeting in a process group, and each broadcast, may take."""


@dataclass
class Stream:
    """A `WeightStream`: the buckets of one publication for one engine."""

    version: int
    group: WeightGroup
    buckets: Sequence[Sequence[TensorSpec]]
    flattened: bool
    source: WeightSource
    lockstep: Lockstep

    async def send(self, number: int) -> None:
        await self.lockstep.turn(self.group.name, number)
        await self.source.send_bucket(self.group.name, self.buckets[number], self.flattened)


@dataclass(frozen=True)
class Joined:
    """A group that both sides are in."""

    group: WeightGroup
    engine: Engine
    source: WeightSource


class DistributedTransport(Transport):
    """Trainer rank 0 broadcasts buckets of tensors to each engine's ranks; no file system is shared.

    A group lasts from one publication to the next. After a failure it is left on both sides, and the next attempt makes
    another one: nobody knows which broadcast the other side waits in.
    """

    name = "distributed"
    Config = DistributedTransportConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._source: WeightSource | None = None
        self._version = 0
        self._buckets: Sequence[Sequence[TensorSpec]] = ()
        self._lockstep: Lockstep
        self._joined: dict[str, Joined] = {}
        # A server may still have groups of another run, which was killed.
        self._names = (f"weights-{secrets.token_hex(4)}-{number}" for number in itertools.count())

    @classmethod
    def problems(cls, config: Any, engine: type[Engine], device: str) -> list[str]:
        found = []
        if engine.join_weight_group is Engine.join_weight_group:
            found.append(f"engine {engine.name!r} takes no weights from process groups: use another transport")
        if config.backend == "nccl" and device == "cpu":
            found.append('backend = "nccl" needs weights on CUDA devices, and trainer.device is "cpu": use "gloo"')
        return found

    async def begin(self, source: WeightSource, version: int) -> int:
        from reroll.publication.lockstep import Lockstep

        self._source, self._version = source, version
        # Less than an engine waits in its group for a bucket.
        self._lockstep = Lockstep(self.config.timeout / 2)
        self._buckets = await source.weight_layout(self.config.update_weight_buffer_size)
        return sum(spec.num_bytes for bucket in self._buckets for spec in bucket)

    async def stage(self, engine: Engine) -> None:
        assert self._source is not None, "begin comes first"
        if engine.address not in self._joined:
            await self._join(engine, self._source)
        joined = self._joined[engine.address]
        flattened = self.config.weight_sync_mode == "flattened"
        stream = Stream(self._version, joined.group, self._buckets, flattened, self._source, self._lockstep)
        async with self._or_leave(joined):
            with self._lockstep.among(joined.group.name):
                await engine.stage_stream(stream)

    async def commit(self, engine: Engine, version: int, recompute: bool = False) -> CommitCost:
        """An engine that cannot hold two sets of weights takes them from its stream here."""
        joined = self._joined.get(engine.address)
        if joined is None:
            return await super().commit(engine, version, recompute)  # nothing was staged, as the engine will say
        async with self._or_leave(joined):
            with self._lockstep.among(joined.group.name):
                return await super().commit(engine, version, recompute)

    async def finish(self) -> None:
        self._buckets = ()
        if self._source is not None:
            await self._source.drop_bucket()

    async def close(self) -> None:
        """Engines may outlive the run, and leave. The trainer's side ends with it: when a run is stopped, the trainer
        may be in the middle of a step, which nobody waits for."""
        from asyncio import gather

        joined, self._joined = self._joined, {}
        leaving = [found.engine.leave_weight_group(found.group.name) for found in joined.values()]
        await gather(*(_within(CLOSE_SECONDS, call) for call in leaving), return_exceptions=True)

    async def _join(self, engine: Engine, source: WeightSource) -> None:
        from reroll.workers.together import together

        for former in [joined for joined in self._joined.values() if joined.engine is engine]:
            await self._leave(former)  # it was started again, under another address
        group = await source.host_group(
            next(self._names), 1 + engine.weight_ranks, self._backend(engine, source), self.config.timeout
        )
        joined = Joined(group, engine, source)
        async with self._or_leave(joined):
            await together([source.join_group(group.name), engine.join_weight_group(group)])
        self._joined[engine.address] = joined

    def _backend(self, engine: Engine, source: WeightSource) -> Literal["gloo", "nccl"]:
        backend: Literal["auto", "gloo", "nccl"] = self.config.backend
        on_devices = source.weight_device == engine.weight_device == "cuda"
        if backend == "auto":
            return "nccl" if on_devices else "gloo"
        if backend == "nccl" and not on_devices:
            raise RerollError(
                'serving.transport: backend = "nccl" needs weights on CUDA devices, but the trainer has them on '
                f'{source.weight_device} and engine {engine.address!r} on {engine.weight_device}: use "gloo" or "auto"'
            )
        return backend

    @asynccontextmanager
    async def _or_leave(self, joined: Joined) -> AsyncIterator[None]:
        """Whatever fails in here, or is cancelled, the group is left on both sides."""
        from reroll.workers.together import uninterrupted

        try:
            yield
        except BaseException as error:
            for trouble in await uninterrupted(self._leave(joined)):
                error.add_note(f"process group {joined.group.name!r} could not be left: {trouble}")
            raise

    async def _leave(self, joined: Joined) -> list[Exception]:
        """Both sides at once, since one may wait for the other; what went wrong."""
        from asyncio import gather

        self._joined = {address: found for address, found in self._joined.items() if found is not joined}
        name, engine, seconds = joined.group.name, joined.engine, self.config.timeout + LEAVE_SECONDS
        found = await gather(
            _within(seconds, joined.source.leave_group(name), "the trainer"),
            _within(seconds, engine.leave_weight_group(name), f"engine {engine.address!r}"),
            return_exceptions=True,
        )
        return [error for error in found if isinstance(error, Exception)]


async def _within(seconds: float, call: Coroutine[Any, Any, None], who: str = "an engine") -> None:
    from asyncio import timeout

    try:
        async with timeout(seconds):
            await call
    except TimeoutError:
        raise RerollError(f"{who} does not answer") from None
