"""Workers with variables of the run's in their environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reroll.api import Placement, Worker, WorkerSpec


class WithEnvironment(Placement):
    """Another placement, with variables for every worker that is started through this one. In the worker's own
    specification they replace those of the same name: what must not be set from outside is refused where it is
    given."""

    def __init__(self, placement: Placement, variables: Mapping[str, str]) -> None:
        super().__init__()
        self.placement = placement
        self.variables = dict(variables)

    async def devices(self) -> int | None:
        return await self.placement.devices()

    async def prepare(self, specs: Sequence[WorkerSpec], share_devices: bool = False) -> None:
        await self.placement.prepare([self._with_variables(spec) for spec in specs], share_devices)

    async def start(self, spec: WorkerSpec) -> Worker:
        return await self.placement.start(self._with_variables(spec))

    async def close(self) -> None:
        await self.placement.close()

    def _with_variables(self, spec: WorkerSpec) -> WorkerSpec:
        return replace(spec, environment={**spec.environment, **self.variables})
