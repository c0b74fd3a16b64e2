"""A plugin: the embedded engine, whose worker may die without ending the run."""

import asyncio
import os
import signal
from dataclasses import replace

from reroll.api import EngineUnavailable, WorkerDied, hookimpl
from reroll.placement.local import LocalPlacement
from reroll.serving.local.engine import LocalEngine


class Mortal:
    """A worker whose calls tell its death as the engine's."""

    def __init__(self, worker):
        self.worker = worker
        self.name = worker.name

    def call(self, method, *arguments, **keywords):
        asked = self.worker.call(method, *arguments, **keywords)
        told = asyncio.get_running_loop().create_future()

        def tell(done):
            if told.done():
                return
            if error := done.exception():
                told.set_exception(EngineUnavailable(str(error)) if isinstance(error, WorkerDied) else error)
            else:
                told.set_result(done.result())

        asked.add_done_callback(tell)
        return told

    async def close(self):
        await self.worker.close()


class MortalEngine(LocalEngine):
    name = "mortal"
    recoverable = True

    @classmethod
    async def start(cls, config, context):
        placement = LocalPlacement()
        death = asyncio.get_running_loop().create_future()
        placement.on_death = lambda error: death.set_result(EngineUnavailable(str(error)))
        engine = await super().start(config, replace(context, placement=placement))
        engine.worker, engine.death, engine.context = Mortal(engine.worker), death, context
        return engine

    async def lost(self):
        return await asyncio.shield(self.death)

    async def recover(self):
        fresh = await self.start(self.config, self.context)
        self.worker, self.death = fresh.worker, fresh.death

    async def keep_weights(self):
        """It serves what it was started with, as that version."""

    def die(self):
        os.kill(self.worker.worker.process.pid, signal.SIGKILL)


@hookimpl
def reroll_engines():
    return [MortalEngine]
