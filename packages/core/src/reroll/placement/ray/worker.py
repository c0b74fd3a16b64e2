"""The controller's side of an actor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from reroll.api import RerollError, WorkerSpec
from reroll.placement.ray.actor import WorkerActor
from reroll.workers.calling import CallingWorker
from reroll.workers.frames import decode
from reroll.workers.process import LAST_WORDS, last_lines

ENDING_SECONDS = 5.0
"""How long Ray may take to say why an actor has ended."""
THREADS = 4
"""Of the actor: one waits for answers, one takes calls, and neither keeps the other waiting."""


class RayWorker(CallingWorker):
    """A worker in an actor, which ends with the program that made it.

    A call for answers is pending all the time, so that the actor's end is noticed while nothing else waits.
    """

    def __init__(self, name: str, actor: Any, log: Path | None) -> None:
        self._actor = actor
        self._log = log
        self._sent = 0
        self._ending: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        super().__init__(name)
        self._reading = asyncio.create_task(self._read(), name=f"read {name}")

    @classmethod
    async def start(
        cls, spec: WorkerSpec, options: Mapping[str, Any], devices: str | None, timeout: float
    ) -> RayWorker:
        """Makes the actor and waits until its object is made; raises what making it raised.

        Args:
            options: of the actor: resources, place, environment.
            devices: see `WorkerActor`.
            timeout: seconds until its process must be up.
        """
        log = spec.log.absolute() if spec.log else None
        made = ray.remote(WorkerActor).options(max_restarts=0, max_task_retries=0, max_concurrency=THREADS, **options)
        worker = cls(spec.name, made.remote(log, devices), log)
        try:
            await worker._up(timeout)
        except BaseException:
            await worker.close(timeout=ENDING_SECONDS)
            raise
        await worker._make(spec)
        return worker

    async def _up(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._actor.greet.remote()
        except TimeoutError:
            raise RerollError(
                f"worker {self.name!r} was not started within {timeout:g} s by Ray: look at `ray status` and the "
                "logs of the node, or raise placement.backend's startup_timeout"
            ) from None
        except RayError:
            await self._reading  # which has the same failure
            assert self._died is not None
            raise self._died from None

    def _transmit(self, frame: bytes) -> None:
        self._actor.send.remote(self._sent, frame)
        self._sent += 1

    async def _read(self) -> None:
        try:
            while True:
                for reply in decode(await self._actor.receive.remote()):
                    self._resolve(reply)
        except RayError as error:
            self._ending.set_result(error)
            await self._mourn()
        except Exception as error:
            self.given_up = f"; its reply could not be read: {type(error).__name__}: {error}"
            self.kill()
            self._ending.set_result(error)
            await self._mourn()

    async def _how_it_ended(self) -> tuple[str, str]:
        await asyncio.wait([self._ending], timeout=ENDING_SECONDS)
        error = self._ending.result() if self._ending.done() else None
        how = "was ended" if not isinstance(error, RayError) else f"ended: {_reason(error)}"
        return how, last_lines(self._log) if self._log else ""

    async def close(self, timeout: float = 10.0) -> None:
        """Ends the actor, which keeps nothing that would have to be put away, and waits until Ray says so."""
        self._closing = True
        self._pinging.cancel()
        self.kill()
        await asyncio.wait([self._reading], timeout=max(timeout, ENDING_SECONDS))
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def kill(self) -> None:
        with suppress(Exception):  # Ray itself may have ended
            ray.kill(self._actor, no_restart=True)


def _reason(error: RayError) -> str:
    """What Ray knows, without the advice that it gives for every case."""
    text = str(error).partition(" Some common causes")[0].strip()
    _, found, reason = text.partition("The actor is dead because ")
    return "\n".join((reason if found else text).splitlines()[-LAST_WORDS:])
