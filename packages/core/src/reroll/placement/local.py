"""Workers as child processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reroll.api import Placement, RerollError, Worker, WorkerSpec

if TYPE_CHECKING:
    from reroll.workers.process import ProcessWorker


VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia/gpus")


class LocalPlacement(Placement):
    """Every worker is a child process of the controller and ends with it. The machine's GPUs are handed out in the
    order of the workers, trainer ranks first."""

    name = "local"

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._workers: list[ProcessWorker] = []
        self._devices: dict[str, str] = {}

    async def devices(self) -> int | None:
        return len(found) if (found := visible_devices()) else None

    async def prepare(self, specs: Sequence[WorkerSpec], share_devices: bool = False) -> None:
        """Gives every worker its GPUs; RerollError if there are too few."""
        there, taken = visible_devices(), {"trainer": 0, "engine": 0, "other": 0}
        for spec in specs:
            first = taken[spec.role] if share_devices else sum(taken.values())
            taken[spec.role] += spec.gpus
            if spec.gpus and there:
                self._devices[spec.name] = ",".join(there[first : first + spec.gpus])
        needed = max(taken.values()) if share_devices else sum(taken.values())
        if there and needed > len(there):
            wanted = ", ".join(f"{spec.name} {spec.gpus}" for spec in specs if spec.gpus)
            raise RerollError(
                f"the run needs {needed} GPUs ({wanted}), but this machine shows {len(there)}: lower "
                "trainer.num_ranks, serving.num_engines or sglang.tp_size, or have them take turns "
                f"(placement.colocate); {VISIBLE} may hide some"
            )

    async def start(self, spec: WorkerSpec) -> Worker:
        # Imported here: `plan` looks at this class, and must not wait for asyncio.
        from reroll.workers.process import ProcessWorker

        if spec.name in self._devices:
            spec = replace(spec, environment={**spec.environment, VISIBLE: self._devices[spec.name]})
        worker = await ProcessWorker.start(spec)
        worker.on_death = self.died
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        from reroll.workers.together import together

        workers, self._workers = self._workers, []
        await together(worker.close() for worker in workers)


def visible_devices() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them; none where the driver tells of none."""
    if (given := os.environ.get(VISIBLE)) is not None:
        return [name for name in given.split(",") if name]
    return [str(number) for number in range(len(list(DRIVER.iterdir())))] if DRIVER.is_dir() else []
