"""`[serving]`: which engine, how many, and how weights reach them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from reroll.api import ConfigSection, Engine, Hook, Problem, RunFile, Selection
from reroll.config.environment import environment_problems

OF_SERVERS = (
    "urls",
    "router",
    "python",
    "api_key_env",
    "startup_timeout",
    "health_interval",
    "health_timeout",
    "request_timeout",
)
"""Keys for engines that are servers; the embedded engine reads none of them."""
SET_FOR_ENGINES = {
    "OMP_NUM_THREADS": "it follows from the engine's threads",
    "TOKENIZERS_PARALLELISM": "an engine tokenizes nothing that it would have threads for",
    "SGLANG_USE_CPU_ENGINE": "it follows from sglang.device",
    "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": "each server's ranks meet through a file of their own",
}
"""Variables that reroll sets for engines → what decides them."""
OF_RECOVERY = ("engine_restarts", "recovery_timeout")
"""Keys for engines that can be started again."""


class ServingSection(ConfigSection):
    section: ClassVar[str] = "serving"
    refused: ClassVar[Mapping[str, str]] = {
        "update_weights_interval": "weights are published after every collection, which the staleness bound counts on; "
        "for fewer publications make collections larger (rollout.rollout_batch_size)",
    }

    engine: Annotated[Selection, Hook("engines")] = Selection(name="local")
    """What generates: `local` is the embedded engine; options as in { name = "local", max_running_requests = 64 }."""
    num_engines: int = Field(1, gt=0)
    """Engines, each in a process of its own with the whole model; a group stays on one of them. With `urls` it is
    their number."""
    urls: tuple[str, ...] = ()
    """Servers that are running already, one an engine; without them servers are launched."""
    router: str | None = None
    """URL of SGLang's own router in front of the servers in `urls`, with their key: it is asked for responses, servers
    for everything else. It places the responses of one group on any engine, so that `engine_drain` is not possible."""
    python: Path | None = None
    """Python of the environment in which servers are launched, where it is not reroll's own: SGLang pins its torch."""
    api_key_env: str | None = None
    """Environment variable that holds the key of the servers in `urls`. Launched ones get a new key."""
    startup_timeout: float = Field(600.0, gt=0)
    """Seconds until a launched server is ready, or one of `urls` answers."""
    health_interval: float = Field(5.0, gt=0)
    """Seconds between two questions whether a server is well; with fewer a loss is noticed sooner."""
    health_timeout: float = Field(20.0, gt=0)
    """Seconds without an answer after which a server counts as lost: to that question, which SGLang answers after a
    second at the earliest, or to any other that needs no work. Loads, and joining process groups, may take longer."""
    request_timeout: float | None = Field(None, gt=0)
    """Seconds that one response may take; unset, as long as its server is well."""
    engine_restarts: int = Field(3, ge=0)
    """How often one engine may be started again in a run. Then the run goes on with the others, or ends where none is
    left."""
    recovery_timeout: float = Field(110.0, gt=0)
    """Seconds that starting a lost engine again may take, all tries together; loading it then may take
    `publication_timeout`. An engine that is not back by then is given up."""
    env_vars: dict[str, str] = {}
    """Variables in the environment of engines and of launched servers, as in { NCCL_DEBUG = "WARN" }: what libraries
    read there. Names that reroll sets itself are refused, and so are secrets."""
    publication_mode: Annotated[Selection, Hook("publication_modes")] = Selection(name="barrier")
    """When engines take new weights: `barrier` (nothing is in flight), `engine_drain` (one engine after another) or
    `refresh` (in the middle of responses)."""
    transport: Annotated[Selection, Hook("transports")] = Selection(name="disk")
    """How tensors reach engines: `disk` (any file system that both share), `shared_memory`, or `distributed` (broadcast
    in process groups; nothing is shared)."""
    publication_timeout: float = Field(300.0, gt=0)
    """Seconds that one publication may take; one that takes longer has failed."""
    check_weight_update_equal: bool = False
    """Compare after every publication, to the bit, what all engines serve, and with the trainer where the engine's
    digest can be compared with its. A difference is a failed publication. Reads all weights of every engine."""

    @model_validator(mode="before")
    @classmethod
    def _count_urls(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(urls := values.get("urls"), list | tuple) and urls:
            return {"num_engines": len(urls), **values}
        return values

    def problems(self, run: RunFile) -> Iterator[Problem]:
        yield from self._url_problems()
        yield from environment_problems("serving.env_vars", self.env_vars, SET_FOR_ENGINES)
        if self.router is not None:
            if not self.urls and self.engine.name != "local":
                yield Problem(
                    "serving.router",
                    f"{self.router!r} is in front of no server: those that reroll launches get ports and keys anew",
                    "start the servers before the router, and give them as serving.urls; or leave it out",
                )
            if not _is_url(self.router):
                yield Problem("serving.router", f"{self.router!r} is no URL", 'give one as "http://127.0.0.1:30000"')
            if self.publication_mode.name == "engine_drain":
                yield Problem(
                    "serving.publication_mode",
                    '"engine_drain" needs every group on one engine, and serving.router places responses itself',
                    'choose "barrier" or "refresh", or leave serving.router out',
                )
        yield from self._idle_problems(run)

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        if self.python is not None and not os.access(self.python.expanduser(), os.X_OK):
            yield Problem(
                "serving.python",
                f"{str(self.python)!r} is no program",
                "give the bin/python of an environment with SGLang, or make that environment first",
            )
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            yield Problem("serving.api_key_env", f"the variable {self.api_key_env} is not set", "set it to the key")

    def _url_problems(self) -> Iterator[Problem]:
        for index, url in enumerate(self.urls):
            if not _is_url(url):
                yield Problem(f"serving.urls[{index}]", f"{url!r} is no URL", 'give one as "http://127.0.0.1:30000"')
            elif url.rstrip("/") in {earlier.rstrip("/") for earlier in self.urls[:index]}:
                yield Problem(f"serving.urls[{index}]", f"{url!r} is given twice", "every server is one engine")
        if self.urls and self.num_engines != len(self.urls):
            yield Problem(
                "serving.num_engines",
                f"{self.num_engines} is not the number of serving.urls, which is {len(self.urls)}",
                "leave it out",
            )
        if self.urls and self.python is not None:
            yield Problem("serving.python", "does nothing: with serving.urls no server is launched", "leave it out")
        if self.urls and self.env_vars:
            yield Problem(
                "serving.env_vars",
                "does nothing: with serving.urls no server is launched",
                "set the variables where the servers are started",
            )
        if self.api_key_env is not None and not self.urls:
            yield Problem(
                "serving.api_key_env", "does nothing: a launched server gets a key of its own", "leave it out"
            )

    def _idle_problems(self, run: RunFile) -> Iterator[Problem]:
        """Keys that the chosen engine does not read."""
        name = self.engine.name
        engine = cast(type[Engine], run.component("engines", name))
        idle = dict.fromkeys(OF_SERVERS, "is embedded, not a server") if name == "local" else {}
        if not engine.recoverable:
            idle |= dict.fromkeys(OF_RECOVERY, "cannot be started again: its end is the run's")
        for key, reason in idle.items():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not (key == "api_key_env" and not self.urls):
                shown = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
                yield Problem(
                    f"serving.{key}",
                    f"{shown!r} does nothing: the engine {name!r} {reason}",
                    'leave it out, or choose an engine that is a server: serving.engine = "sglang"',
                )


def _is_url(text: str) -> bool:
    """Whether routes can be appended to it. Nobody's password or key: a run file is saved and shown."""
    try:
        parts = urlsplit(text)
        port = parts.port  # raises where it is no port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not {"@", "?", "#"} & set(text)
        and not any(character.isspace() for character in text)
    )
