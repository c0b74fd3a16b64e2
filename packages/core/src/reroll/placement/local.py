"""Workers as child processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reroll.api import Placement, Worker, WorkerDied, WorkerSpec

if TYPE_CHECKING:
    from reroll.workers.process import ProcessWorker


class LocalPlacement(Placement):
    """Every worker is a child process of the controller and ends with it."""

    name = "local"

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._workers: list[ProcessWorker] = []

    async def start(self, spec: WorkerSpec) -> Worker:
        # Imported here: `plan` looks at this class, and must not wait for asyncio.
        from reroll.workers.process import ProcessWorker

        worker = await ProcessWorker.start(spec)
        worker.on_death = self._died
        self._workers.append(worker)
        return worker

    def _died(self, error: WorkerDied) -> None:
        if self.on_death is not None:
            self.on_death(error)

    async def close(self) -> None:
        from reroll.workers.together import together

        workers, self._workers = self._workers, []
        await together(worker.close() for worker in workers)
