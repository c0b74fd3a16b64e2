"""A trainer rank's part in sending weights through process groups: all ranks gather, rank 0 alone is in the groups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch import Tensor

from reroll.api import RerollError, TensorSpec, WeightGroup
from reroll.models.process_groups import Member, dtype_of, flatten, listen, specs
from reroll.training.ranks import Ranks
from reroll.training.tensors import buckets, named_tensors, whole


def layout(model: torch.nn.Module, bucket_bytes: int) -> list[list[TensorSpec]]:
    """Every tensor once, in buckets of at most `bucket_bytes` where a tensor is not larger.

    A bucket also ends where the next tensor would begin at no multiple of its element's size: as one tensor of bytes
    it is read in place.
    """
    tensors = named_tensors(model)
    by_name = {spec.name: spec for spec in specs(tensors)}
    found: list[list[TensorSpec]] = []
    for names in buckets(tensors, bucket_bytes):
        bucket: list[TensorSpec] = []
        for spec in (by_name[name] for name in names):
            if sum(before.num_bytes for before in bucket) % dtype_of(spec).itemsize:
                found.append(bucket)
                bucket = []
            bucket.append(spec)
        found.append(bucket)
    return found


class Hosted:
    """Rank 0's place in a group. What it does there it does on a thread of its own, in order, so that a group in which
    it waits for an engine holds up nothing else."""

    def __init__(self, group: WeightGroup, store: Any) -> None:
        self.group = group
        self._store = store
        self._member: Member | None = None
        self._left = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=group.name)

    def join(self) -> Future[None]:
        return self._thread.submit(self._join)

    def _join(self) -> None:
        self._member = Member(self.group, 0, self._store, self._left)

    def send(self, tensors: Sequence[Tensor]) -> Future[None]:
        return self._thread.submit(self._send, tensors)

    def _send(self, tensors: Sequence[Tensor]) -> None:
        if self._member is None:
            raise RerollError(f"process group {self.group.name!r} was not joined")
        self._member.broadcast([tensor.to(self._member.device) for tensor in tensors])

    def leave(self) -> Future[None]:
        self._left.set()
        left = self._thread.submit(self._leave)
        self._thread.shutdown(wait=False)
        return left

    def _leave(self) -> None:
        member, self._member, self._store = self._member, None, None
        if member is not None:
            member.leave()


class WeightSender:
    """The groups of rank 0, and the bucket that was gathered last, which every engine is sent before the next one."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._groups: dict[str, Hosted] = {}
        self._kept: list[Tensor] = []

    def host(self, name: str, world_size: int, backend: Literal["gloo", "nccl"], timeout: float) -> WeightGroup:
        group, store = listen(name, world_size, backend, timeout)
        self._groups[name] = Hosted(group, store)
        return group

    def join(self, name: str) -> Future[None]:
        return self._hosted(name).join()

    def gather(self, model: torch.nn.Module, bucket: Sequence[TensorSpec], flattened: bool) -> None:
        """Has rank 0 keep the bucket as it is broadcast. Every rank calls this."""
        self.drop()
        tensors = named_tensors(model)
        kept: list[Tensor] = []
        for spec in bucket:
            tensor = whole(tensors[spec.name])
            if self._ranks.rank == 0:
                kept.append(tensor.contiguous())
        if kept:
            self._kept = [flatten(kept)] if flattened else kept

    def send(self, name: str) -> Future[None]:
        """Broadcasts the kept bucket."""
        if not self._kept:
            raise RerollError(f"no bucket is kept that could be sent into process group {name!r}")
        return self._hosted(name).send(self._kept)

    def drop(self) -> None:
        self._kept = []

    def leave(self, name: str) -> Future[None]:
        hosted = self._groups.pop(name, None)
        if hosted is not None:
            return hosted.leave()
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing

    def _hosted(self, name: str) -> Hosted:
        if name not in self._groups:
            raise RerollError(f"process group {name!r} was left before")
        return self._groups[name]
