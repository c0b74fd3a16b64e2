"""A real trainer and real engines with the distributed transport between them."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from forked_workers import forked_workers
from training_cases import ranks_of

from reroll.api import EngineContext
from reroll.placement.local import LocalPlacement
from reroll.publication.distributed import DistributedTransport, DistributedTransportConfig
from reroll.publication.publisher import Publisher
from reroll.rollouts.admission import GroupAdmission
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.serving.router import LeastOutstandingTokensRouter


class Names(list):
    """The process groups that the trainer hosted, and those that it left, in order."""

    def __init__(self, trainer):
        super().__init__()
        self.left = []
        host, leave = trainer.host_group, trainer.leave_group

        async def host_and_note(name, *arguments):
            self.append(name)
            return await host(name, *arguments)

        async def leave_and_note(name):
            await leave(name)
            self.left.append(name)

        trainer.host_group, trainer.leave_group = host_and_note, leave_and_note


class Setting:
    """Engines, and publishers with the transport; `fails` is called when a first attempt has failed."""

    def __init__(self, trainer, engines):
        self.trainer = trainer
        self.engines = engines
        self.router = LeastOutstandingTokensRouter(engines)
        self.groups = Names(trainer)
        self.warnings = []
        self.fails = lambda: None

    def publisher(self, mode, **options):
        options = {"update_weight_buffer_size": 20_000, "timeout": 60.0, **options}
        transport = DistributedTransport(DistributedTransportConfig(**options))
        return Publisher(mode(), transport, self.trainer, self.engines, self.router, GroupAdmission(), 200.0, self.warn)

    def warn(self, message):
        self.warnings.append(message)
        self.fails()

    async def digests(self):
        return {await engine.weights_digest() for engine in self.engines}


@asynccontextmanager
async def setting_of(folder, model, ranks=1, engines=2, kind=LocalEngine):
    """Two engines of a kind of LocalEngine, in forked processes."""
    placement = LocalPlacement()

    async def engine(number):
        name = f"engine-{number}"
        context = EngineContext(name, Path(model), 0, placement, Path(folder) / f"{name}.log")
        return await kind.start(LocalEngineConfig(eos_token_ids=()), context)

    async with ranks_of(folder, model, ranks, "trainer.lr=1e-2") as trainer:
        try:
            with forked_workers():
                started = await asyncio.gather(*(engine(number) for number in range(engines)))
            yield Setting(trainer, started)
        finally:
            await placement.close()
