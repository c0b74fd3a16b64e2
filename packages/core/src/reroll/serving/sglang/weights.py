"""How new weights get into a server that is paused: from a folder, or through a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from reroll.api import EngineError, WeightBucket, WeightStream
from reroll.serving.sglang.client import SGLangClient
from reroll.workers.together import together


class WeightUpdate(Protocol):
    """What was staged."""

    async def load(self, client: SGLangClient) -> None:
        """Loads all of it. EngineError leaves the server with anything."""


@dataclass
class DiskUpdate:
    """Files in one folder that the server sees."""

    buckets: Sequence[WeightBucket] = field(default_factory=list)

    async def load(self, client: SGLangClient) -> None:
        folders = {Path(bucket.path).parent for bucket in self.buckets}
        if len(folders) != 1:
            raise EngineError(f"SGLang loads one folder, but the weights stand in {sorted(map(str, folders))}")
        # `auto` also where the server was launched with dummy weights. No session: only other updates need one.
        await client.control(
            "/update_weights_from_disk",
            {"model_path": str(folders.pop()), "load_format": "auto", "flush_cache": False},
            slow=True,
        )


@dataclass
class StreamUpdate:
    """Buckets that the trainer broadcasts into a process group which the server has joined."""

    stream: WeightStream

    async def load(self, client: SGLangClient) -> None:
        status, _ = await client.ask("/begin_weight_update", {})
        if status != 200:  # an update that failed was not ended
            await client.control("/end_weight_update", {}, slow=True)
            await client.control("/begin_weight_update", {})
        for number in range(len(self.stream.buckets)):
            await together([self._receive(client, number), self.stream.send(number)])
        await client.control("/end_weight_update", {}, slow=True)

    async def _receive(self, client: SGLangClient, number: int) -> None:
        bucket = self.stream.buckets[number]
        await client.control(
            "/update_weights_from_distributed",
            {
                "names": [tensor.name for tensor in bucket],
                "dtypes": [tensor.dtype for tensor in bucket],
                "shapes": [list(tensor.shape) for tensor in bucket],
                "group_name": self.stream.group.name,
                # The cache was flushed once; a flush that fails would come after the weights have changed.
                "flush_cache": False,
                "abort_all_requests": False,
                "load_format": "flattened_bucket" if self.stream.flattened else None,
            },
            slow=True,
        )
