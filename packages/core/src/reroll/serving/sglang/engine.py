"""An SGLang server as the controller sees it."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from reroll.api import (
    CommitCost,
    Completion,
    Config,
    Engine,
    EngineContext,
    EngineError,
    EngineUnavailable,
    GenerationRequest,
    PlannedEngine,
    PlannedModel,
    RunFile,
    WeightBucket,
    WeightGroup,
    WeightStream,
    WorkerSpec,
)

if TYPE_CHECKING:
    # `plan` asks this module for the configuration alone, and must not wait for asyncio and aiohttp.
    from asyncio import Task, Timeout

    from reroll.serving.limits import Limits
    from reroll.serving.sglang.client import SGLangClient
    from reroll.serving.sglang.server import Server
    from reroll.serving.sglang.weights import WeightUpdate


STARTING_SECONDS = 30.0
"""Beyond the start itself, what freeing a server of what it did before may take."""
PARTIAL_SECONDS = 1.0
"""An aborted request's tokens arrive within; SGLang misses requests that it had not begun when it was paused."""


class SGLangEngineConfig(Config):
    """Options of an SGLang engine on the controller's side; those of the server stand in `[sglang]`."""

    max_concurrent_requests: int = Field(default=2048, ge=1)
    """Most requests that are sent to one server at once; more wait in the controller."""


class SGLangEngine(Engine):
    """One server, launched or attached to.

    It holds one set of weights, so that new ones are loaded in `commit_weights`, with generation paused. After a load
    that failed, the server holds neither the old weights nor the new: until another load has succeeded, nothing runs on
    it and `weight_version` raises. What ran is aborted; what still comes waits, and is aborted by `resume` or the next
    staging, before which somebody may wait for the engine to be idle.
    """

    name: ClassVar[str] = "sglang"
    Config = SGLangEngineConfig
    recoverable = True
    shares_devices = True

    def __init__(self, config: SGLangEngineConfig, server: Server) -> None:
        from asyncio import Event

        super().__init__(config)
        self.server = server
        self.address = f"sglang:{server.name}"
        self.limits: Limits
        self._staged: WeightUpdate | None = None
        self._sound = Event()
        self._paused = self._released = False
        # Requests, by the limit that ends the wait for them, and whether they were sent.
        self._asked: dict[Timeout, bool] = {}
        self._resuming: Task[None] | None = None

    @classmethod
    def deterministic(cls, config: Any, run: RunFile) -> bool | None:
        """As `[sglang]` says; of servers that run already it is not known."""
        from reroll.serving.config import ServingSection
        from reroll.serving.sglang.section import SGLangSection

        if run.get(ServingSection).urls:
            return None
        return bool(run.get(SGLangSection).by_name().get("enable_deterministic_inference", False))

    @classmethod
    async def start(cls, config: Any, context: EngineContext) -> SGLangEngine:
        """Launches the server and waits until it answers, or attaches to the one that `serving.urls` names.

        Raises:
            EngineError: it does not become ready; with its last words.
        """
        _require_extra()
        from asyncio import timeout

        from reroll.serving.sglang.server import AttachedServer, LaunchedServer, settings_of
        from reroll.workers.together import uninterrupted

        config = config or SGLangEngineConfig()
        settings = settings_of(context, config.max_concurrent_requests)
        server: Server = AttachedServer(settings) if settings.url else LaunchedServer(settings)
        engine = cls(config, server)
        try:
            # What is asked of a server that is attached to may wait for what another run left undone.
            async with timeout(settings.startup_timeout + STARTING_SECONDS):
                await engine._begin()
        except BaseException as error:
            await uninterrupted(server.close())
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"{server.url} answers, but does not let go of what it did before within "
                    f"{settings.startup_timeout:g} s (serving.startup_timeout): start it again"
                ) from None
            raise
        return engine

    @classmethod
    def worker_specs(cls, config: Any, context: EngineContext) -> list[WorkerSpec]:
        _require_extra()
        from reroll.serving.sglang.server import launcher_spec, settings_of

        config = config or SGLangEngineConfig()
        settings = settings_of(context, config.max_concurrent_requests)
        return [] if settings.url else [launcher_spec(settings)]

    @classmethod
    def planned(cls, config: Any, run: RunFile, model: PlannedModel) -> PlannedEngine:
        from reroll.serving.sglang.command import planned_server

        return planned_server(run, model)

    async def _begin(self, again: bool = False) -> None:
        """From a server that starts to one that is ready, with nothing left of what it did for others."""
        self._sound.clear()
        await self.server.start()
        # A process group with the server of before is not this one's, wherever it listens.
        restarted = f", start {self.server.starts}" if self.server.starts > 1 else ""
        self.address = f"sglang:{self.server.name} at {self.server.url}{restarted}"
        facts = await self.server.facts()
        self.limits, self.weight_ranks, self.weight_device = facts.limits, facts.ranks, facts.device
        self._staged, self._paused, self._released = None, False, False
        self.holds_start = not self.server.weights_unknown and not again
        self.server.on_loss(self._let_go)
        if self.holds_start:
            self._sound.set()
            self.server.watch()
        else:
            await self._reset()

    async def _reset(self) -> None:
        """An attached server may be in the middle of an update, or full of another run's requests; SGLang's router may
        send it more. It stays paused until it is loaded, so that nothing comes of weights that nobody knows."""
        if self.server.weights_unknown:
            await self.client.abort(None)
            await self.client.ask("/end_weight_update", {}, slow=True)
        await self.pause("retract")
        await self.server.check_model()

    @property
    def client(self) -> SGLangClient:
        return self.server.client

    async def generate(self, request: GenerationRequest) -> Completion:
        from asyncio import timeout

        from reroll.serving.limits import check

        check(request, self.limits)  # an id that the model does not have ends the server (0.5.23)
        if self.server.loss is not None:
            raise EngineUnavailable(str(self.server.loss))
        limit = timeout(None)
        try:
            async with limit:
                self._asked[limit] = False
                await self._sound.wait()
                if limit in self._asked:
                    self._asked[limit] = True
                return await self.client.generate(request)
        except EngineUnavailable as error:
            self.server.note_loss(error)
            raise
        except TimeoutError:
            if not limit.expired():
                raise  # of something inside, which has its own reason
            if self.server.loss is not None:
                raise EngineUnavailable(str(self.server.loss)) from None
            return Completion(request.request_id, [], [], [], "abort", request.sampling.seed)
        finally:
            self._asked.pop(limit, None)

    def _let_go(self, patience: float = 0.0) -> None:
        """Ends the wait of all requests that are here now; of those that were sent after so many seconds."""
        from asyncio import get_running_loop

        now = get_running_loop().time()
        asked, self._asked = self._asked, {}
        for limit, sent in asked.items():
            limit.reschedule(now + patience if sent else now)

    async def pause(self, mode: Literal["in_place", "retract", "abort"] = "in_place") -> None:
        # Also if no answer comes, it may be paused.
        self._paused = True
        self.server.unwatch()
        await self.client.control("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Goes on, unless a load has failed: then nothing may run, and what waits is ended."""
        if not self._sound.is_set():
            try:
                await self.client.abort(None)
            finally:
                self._let_go(PARTIAL_SECONDS)
            return
        if self._paused:
            await self.client.control("/continue_generation", {})
            self._paused = False
            self._watch()

    def _watch(self) -> None:
        """Health is asked for by having a token generated."""
        if not self._paused and not self._released:
            self.server.watch()

    async def flush_cache(self) -> None:
        status, _ = await self.client.ask("/flush_cache?timeout=0", {})
        if status == 200:
            return
        # Requests are running: their own cache goes with the prefixes', and is computed again.
        try:
            await self.pause("retract")
            await self.client.control("/flush_cache?timeout=0", {})
        finally:
            await self.resume()

    async def join_weight_group(self, group: WeightGroup) -> None:
        await self.client.control(
            "/init_weights_update_group",
            {
                "master_address": group.host,
                "master_port": group.port,
                "rank_offset": 1,
                "world_size": group.world_size,
                "group_name": group.name,
                "backend": group.backend,
            },
            slow=True,
        )

    async def leave_weight_group(self, name: str) -> None:
        await self.client.control("/destroy_weights_update_group", {"group_name": name}, slow=True)

    async def stage_weights(self, buckets: list[WeightBucket]) -> None:
        """Notes the folder; it is read in `commit_weights`, all of it at once."""
        from reroll.serving.sglang.weights import DiskUpdate

        # An attempt that failed before its commit left another folder's, which is gone.
        earlier = self._staged.buckets if isinstance(self._staged, DiskUpdate) else []
        folders = {Path(bucket.path).parent for bucket in buckets}
        kept = [bucket for bucket in earlier if Path(bucket.path).parent in folders]
        self._stage(DiskUpdate([*kept, *buckets]))

    async def stage_stream(self, stream: WeightStream) -> None:
        """Notes the stream; it is received in `commit_weights`."""
        from reroll.serving.sglang.weights import StreamUpdate

        self._stage(StreamUpdate(stream))

    def _stage(self, update: WeightUpdate) -> None:
        self._staged = update
        if not self._sound.is_set():
            self._let_go(PARTIAL_SECONDS)

    async def commit_weights(self, version: int, recompute: bool = False) -> CommitCost:
        """Pauses, loads what was staged, and goes on. Requests in flight keep their tokens; their caches are computed
        again under the new weights, with or without `recompute`, since SGLang cannot keep them.

        Raises:
            EngineError: nothing was staged, or the load failed; see the class.
        """
        from asyncio import get_running_loop

        update, self._staged = self._staged, None
        if update is None:
            raise EngineError(f"engine {self.address!r}: nothing was staged")
        if self._resuming is not None:
            self._resuming.cancel()
        now = get_running_loop().time
        began = now()
        try:
            await self.pause("retract")  # unpaused, every control call waits for all responses and holds up new ones
            await self.client.control("/flush_cache?timeout=0", {})
            self._sound.clear()  # from here on it may hold anything
            await update.load(self.client)
            await self.client.control(
                "/update_weight_version", {"new_version": self.client.names.text(version), "abort_all_requests": False}
            )
        except BaseException:
            if self._sound.is_set():
                self._resuming = self.server.beside(self.resume())  # nothing was loaded yet
            else:
                self.server.beside(self.client.abort(None))
            raise
        self._sound.set()
        await self.resume()
        return CommitCost(pause_seconds=now() - began)

    async def weight_version(self) -> int:
        if not self._sound.is_set():
            raise EngineError(f"engine {self.address!r} holds no version as a whole: it is to be loaded first")
        info = await self.client.control("/model_info", method="GET")
        try:
            return self.client.names.number(info["weight_version"])
        except (TypeError, KeyError, EngineError) as error:
            raise EngineError(f"engine {self.address!r}: {error}") from error

    async def weights_digest(self) -> str:
        """SHA-256 over SGLang's checksums of every rank's tensors. Equal for equal weights in equally started servers;
        it is no digest of the trainer's tensors, several of which SGLang keeps as one."""
        found = await self.client.control("/weights_checker", {"action": "checksum"}, slow=True)
        try:
            ranks = sorted(str(sorted(rank["checksums"].items())) for rank in found["ranks"])
        except (TypeError, KeyError, AttributeError) as error:
            raise EngineError(f"engine {self.address!r}: its checksums cannot be read: {error!r}") from error
        return sha256("\n".join(ranks).encode()).hexdigest()

    async def health(self) -> dict[str, Any]:
        """`weight_version`, `paused`, and the server's own `loads`; raises while it cannot serve."""
        if not self._paused:
            await self.client.control("/health", method="GET")
        info = await self.client.control("/model_info", method="GET")
        with suppress(EngineError):
            loads = await self.client.control("/v1/loads", method="GET")
            return {"weight_version": info["weight_version"], "paused": self._paused, "loads": loads}
        return {"weight_version": info["weight_version"], "paused": self._paused}

    async def lost(self) -> EngineUnavailable:
        return await self.server.lost()

    async def recover(self) -> None:
        await self._begin(again=True)

    async def keep_weights(self) -> None:
        """Names what the server has loaded as the version that the engine began with, and lets requests in. EngineError
        where that is what a training run left in it."""
        from reroll.serving.sglang.versions import trained

        info = await self.client.control("/model_info", method="GET")
        if (version := trained(info.get("weight_version"))) is not None:
            raise EngineError(
                f"engine {self.address!r} holds the weights of version {version} that a training run has loaded into "
                "it, not those that it was started with: start the server again"
            )
        await self.client.control(
            "/update_weight_version",
            {"new_version": self.client.names.text(self.server.settings.version), "abort_all_requests": False},
        )
        self._sound.set()
        await self.resume()

    async def release_memory(self) -> None:
        """Nothing may run in the server, not even what asked for its health."""
        self._released = True
        await self.pause("abort")
        self._sound.clear()  # the weights go as well
        await self.client.control("/release_memory_occupation", {}, slow=True)

    async def resume_memory(self, weights_only: bool = False) -> None:
        tags = ["weights"] if weights_only else ["kv_cache", "cuda_graph"]
        await self.client.control("/resume_memory_occupation", {"tags": tags}, slow=True)
        if not weights_only:
            self._released = False
            await self.resume()
            self._watch()

    async def abort(self, request_id: str | None = None) -> None:
        await self.client.abort(request_id)

    async def close(self) -> None:
        await self.server.close()


def _require_extra() -> None:
    """EngineError unless what the client imports is installed."""
    missing = [name for name in ("aiohttp", "orjson") if find_spec(name) is None]
    if missing:
        raise EngineError(f"an SGLang engine needs {', '.join(missing)}: pip install 'reroll[sglang]'")
