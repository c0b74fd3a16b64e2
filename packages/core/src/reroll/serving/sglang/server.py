"""The server behind an engine: launched through a worker, or run by somebody else."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reroll.api import EngineContext, EngineError, EngineUnavailable, Placement, Worker, WorkerDied, WorkerSpec
from reroll.models.files import ModelFiles
from reroll.serving.config import ServingSection
from reroll.serving.limits import Limits
from reroll.serving.sglang.client import SGLangClient
from reroll.serving.sglang.command import (
    server_device,
    server_environment,
    server_options,
    server_python,
    server_ranks,
)
from reroll.serving.sglang.section import SGLangSection
from reroll.serving.sglang.versions import OF_THIS_PROCESS, PLAIN, VersionNames

LAUNCHER = "reroll.serving.sglang.launcher:ServerLauncher"
POLL_SECONDS = 0.25
STOP_SECONDS = 20.0
LAST_WORDS_SECONDS = 2.0
LAYER = re.compile(r"\.(\d+)\.")
"""Of a tensor's name; its first number counts layers."""
SILENT_SECONDS = 5.0
"""After so long somebody who waits wants to know what for."""


@dataclass(frozen=True)
class ServerSettings:
    """From the run file; durations in seconds.

    Attributes:
        url: of a running server; None launches one.
        arguments: of the launched server's command line.
        router: URL that responses are asked from instead of the server's own.
        peers: URLs of the other servers behind the router.
        warn: told what the user should know.
        names: of the versions that the run loads.
        ranks: processes of one server that hold weights; each needs one of `device`.
    """

    name: str
    model_directory: Path
    version: int
    placement: Placement
    log: Path
    url: str | None
    key: str = field(repr=False)
    router: str | None
    python: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    ranks: int
    device: Literal["cpu", "cuda"]
    connections: int
    startup_timeout: float
    health_interval: float
    health_timeout: float
    request_timeout: float | None
    peers: tuple[str, ...] = ()
    names: VersionNames = PLAIN
    warn: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class ServerFacts:
    """What a running server is. `ranks` and `device`: of the processes that hold weights."""

    limits: Limits
    ranks: int
    device: Literal["cpu", "cuda"]


def settings_of(context: EngineContext, connections: int) -> ServerSettings:
    """What `[serving]` and `[sglang]` say for the engine of this context."""
    serving = context.run.get(ServingSection) if context.run else ServingSection.model_validate({})
    options = context.run.get(SGLangSection) if context.run else SGLangSection()
    return ServerSettings(
        name=context.name,
        model_directory=context.model_directory,
        version=context.version,
        placement=context.placement,
        log=context.log,
        url=serving.urls[context.number] if serving.urls else None,
        key=_key(serving),
        router=serving.router,
        python=server_python(serving.python),
        arguments=server_options(
            options, str(context.model_directory), OF_THIS_PROCESS.text(context.version), context.share_devices
        ),
        environment=server_environment(options),
        ranks=server_ranks(options),
        device=server_device(options),
        connections=connections,
        startup_timeout=serving.startup_timeout,
        health_interval=serving.health_interval,
        health_timeout=serving.health_timeout,
        request_timeout=serving.request_timeout,
        peers=tuple(url for url in serving.urls if url != serving.urls[context.number]) if serving.router else (),
        names=OF_THIS_PROCESS,
        warn=context.warn,
    )


def launcher_spec(settings: ServerSettings) -> WorkerSpec:
    """The worker that launches the server, on whose node and devices it runs."""
    return WorkerSpec(
        name=settings.name,
        target=LAUNCHER,
        arguments={"python": settings.python, "log": settings.log},
        log=settings.log,
        gpus=settings.ranks if settings.device == "cuda" else 0,
        role="engine",
    )


def _key(serving: ServingSection) -> str:
    """Generated for a server that is launched here; of another one, from the environment."""
    if not serving.urls:
        return secrets.token_urlsafe(32)
    if serving.api_key_env is None:
        return ""
    key = os.environ.get(serving.api_key_env, "")
    if not key:
        raise EngineError(f"serving.api_key_env names {serving.api_key_env}, which is not set: set it to the key")
    # The value is a secret: the message does not show it.
    if not (key.isascii() and key.isprintable()):
        raise EngineError(
            f"serving.api_key_env names {serving.api_key_env}, which holds what no header can carry, a line break "
            "perhaps: set it to the key alone"
        )
    return key


class Server(ABC):
    """What both kinds have in common: readiness, limits, and the watch over health.

    Attributes:
        weights_unknown: what it serves was not loaded by this run.
    """

    weights_unknown: bool
    starts = 0
    """How often it was started, or attached to."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.url = settings.url or ""
        self.client: SGLangClient
        self._lost: asyncio.Future[EngineUnavailable] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None

    @abstractmethod
    async def start(self) -> None:
        """Until it answers, which is awaited for `startup_timeout`."""

    async def lost(self) -> EngineUnavailable:
        return await asyncio.shield(self._lost)

    @property
    def loss(self) -> EngineUnavailable | None:
        """Why it was lost, if it was."""
        return self._lost.result() if self._lost.done() else None

    def on_loss(self, told: Callable[[], None]) -> None:
        """Has it called when the server is lost, once for each `start`."""
        self._lost.add_done_callback(lambda _: told())

    def note_loss(self, error: EngineUnavailable) -> None:
        if not self._lost.done():
            self._lost.set_result(error)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Does something whose failure is told otherwise."""

        def ended(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                with suppress(EngineError):
                    task.result()

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def facts(self) -> ServerFacts:
        """What the server says of itself: one that somebody else runs has other options than the run file's."""
        info = await self.client.control("/server_info", method="GET")
        files = ModelFiles(self.settings.model_directory)
        text = files.config.get("text_config") or files.config
        context_len = info.get("context_length") or files.max_context or sys.maxsize
        tokens = info.get("max_total_num_tokens") or sys.maxsize
        return ServerFacts(
            limits=Limits(text["vocab_size"], context_len, tokens, True, "raise sglang.mem_fraction_static"),
            ranks=(info.get("tp_size") or 1) * (info.get("pp_size") or 1),
            device="cuda" if str(info.get("device", self.settings.device)).startswith("cuda") else "cpu",
        )

    @abstractmethod
    async def check_model(self) -> None:
        """EngineError if it serves another model than the run's; asked while it is paused."""

    async def close(self) -> None:
        self.unwatch()
        for task in list(self._tasks):
            task.cancel()
        if hasattr(self, "client"):
            await self.client.close()

    async def _disconnect(self) -> None:
        """From the server as it was before, and tells whoever still waits for it."""
        self.unwatch()
        if hasattr(self, "client"):
            self.note_loss(EngineUnavailable(f"SGLang at {self.url} is started again"))
            await self.client.close()

    def _connect(self, url: str) -> None:
        self.url, self.starts = url, self.starts + 1
        self.client = SGLangClient(
            url,
            self.settings.key,
            connections=self.settings.connections,
            request_timeout=self.settings.request_timeout,
            answer_timeout=self.settings.health_timeout,
            router=self.settings.router,
            peers=self.settings.peers,
            names=self.settings.names,
        )
        self._lost = asyncio.get_running_loop().create_future()

    async def _ready(self) -> None:
        """Until the server generates."""
        while True:
            with suppress(EngineUnavailable):
                status, _ = await self.client.ask("/health", method="GET")
                if status == 200:
                    break
            await asyncio.sleep(POLL_SECONDS)

    def watch(self) -> None:
        """Asks for health from here on; a server that lives and does not serve is lost as well."""
        self.unwatch()
        self._watch = asyncio.create_task(self._keep_asking(), name=f"health of {self.name}")

    def unwatch(self) -> None:
        """For a paused server, which fails SGLang's own check, also where it was asked before the pause."""
        if self._watch is not None:
            self._watch.cancel()

    async def _keep_asking(self) -> None:
        while not self._lost.done():
            await asyncio.sleep(self.settings.health_interval)
            try:
                status, text = await self.client.ask("/health", method="GET")
            except EngineUnavailable as error:
                self.note_loss(error)
            else:
                if status != 200:
                    self.note_loss(EngineUnavailable(f"SGLang at {self.url} is not healthy: {status} {text[:200]}"))


class AttachedServer(Server):
    """One that somebody else runs. It is not started or ended here; what it serves is loaded before it is used."""

    weights_unknown = True

    async def start(self) -> None:
        assert self.settings.url is not None
        await self._disconnect()
        self._connect(self.settings.url)
        # A paused one is no fault: it is freed of what it did before, and loaded.
        status, text = await self._answer()
        if status in (401, 403):
            raise EngineError(
                f"SGLang at {self.url} refuses the key that the variable of serving.api_key_env holds: set it to the "
                "server's own"
                if self.settings.key
                else f"SGLang at {self.url} wants a key: set serving.api_key_env to a variable that holds it"
            )
        if status != 200:
            raise EngineError(f"{self.url} does not answer as SGLang does: {status} {text[:200]}")

    async def check_model(self) -> None:
        """Weights go to a server by name: what it has beyond the run's model would stay as it is, without a word."""
        config = ModelFiles(self.settings.model_directory).config
        info = await self.client.control("/model_info", method="GET")
        theirs, ours = info.get("architectures"), config.get("architectures")
        if theirs and ours and theirs != ours:
            raise self._another_model(f"it is {', '.join(theirs)}, and that is {', '.join(ours)}")
        checksums = await self.client.control("/weights_checker", {"action": "checksum"}, slow=True)
        names = [name for rank in checksums.get("ranks", ()) for name in rank.get("checksums", ())]
        layers = {int(found[1]) for name in names if (found := LAYER.search(name))}
        wanted = (config.get("text_config") or config).get("num_hidden_layers")
        if layers and wanted and len(layers) != wanted:
            raise self._another_model(f"it has {len(layers)} layers, and that has {wanted}")

    def _another_model(self, how: str) -> EngineError:
        return EngineError(
            f"{self.url} serves another model than model.path: {how}; start it with the run's model, or leave it out "
            "of serving.urls"
        )

    async def _answer(self) -> tuple[int, str]:
        limit = self.settings.startup_timeout
        now = asyncio.get_running_loop().time
        silent = now() + SILENT_SECONDS
        last = EngineUnavailable(f"SGLang at {self.url} does not answer")
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        return await self.client.ask("/model_info", method="GET")
                    except EngineUnavailable as error:
                        last = error
                    if now() >= silent:
                        self.settings.warn(f"{last}; waiting up to {limit:g} s (serving.startup_timeout)")
                        silent = float("inf")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise EngineError(f"{last}; waited {limit:g} s (serving.startup_timeout)") from None


class LaunchedServer(Server):
    """One that a worker launches where the placement puts it, and that ends with the run."""

    weights_unknown = False

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._worker: Worker | None = None

    async def start(self) -> None:
        settings = self.settings
        await self._disconnect()
        if self._worker is None:
            self._worker = await settings.placement.start(launcher_spec(settings))
        host, port = await self._worker.call("launch", settings.arguments, settings.environment, settings.key)
        self._connect(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        ended = asyncio.ensure_future(self._worker.call("ended"))
        ready = asyncio.create_task(self._ready())
        try:
            await asyncio.wait([ended, ready], timeout=settings.startup_timeout, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise EngineError(f"engine {settings.name!r}: the SGLang server {ended.result()}")
            if not ready.done():
                words = await self._worker.call("last_lines")
                raise EngineError(
                    f"engine {settings.name!r}: the SGLang server was not ready after {settings.startup_timeout:g} s "
                    f"(serving.startup_timeout); its last lines:\n{words}"
                )
            ready.result()
        except BaseException:
            ready.cancel()
            ended.cancel()
            raise
        lost = self._lost
        ended.add_done_callback(lambda done: self._ended(done, lost))

    def _ended(self, ended: asyncio.Future[str], lost: asyncio.Future[EngineUnavailable]) -> None:
        """Told to those who wait for this server's end, and not for its successor's."""
        if ended.cancelled() or ended.exception() or lost.done():
            return  # the end of the worker is the placement's to tell
        lost.set_result(EngineUnavailable(f"engine {self.name!r}: the SGLang server {ended.result()}"))

    async def lost(self) -> EngineUnavailable:
        """A request may notice the end first; the launcher knows how it came."""
        noticed = await super().lost()
        assert self._worker is not None
        with suppress(TimeoutError, WorkerDied):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                return EngineUnavailable(f"engine {self.name!r}: the SGLang server {await self._worker.call('ended')}")
        return noticed

    async def check_model(self) -> None:
        """It was given the run's."""

    async def close(self) -> None:
        await super().close()
        if self._worker is not None:
            with suppress(WorkerDied, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._worker.call("stop")
            await self._worker.close()
