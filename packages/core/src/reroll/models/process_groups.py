"""Process groups that carry weights from the trainer, rank 0, to one engine's ranks, and the format of what they carry.

Made as SGLang makes its own (`init_custom_process_group`, `FlattenedTensorBucket`), so that either side may be a real
server. A group needs no default process group, and is independent of one. Imported by workers only: brings torch.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from reroll.api import RerollError, TensorSpec, WeightGroup
from reroll.workers.host import choose_interface, own_host

CPU = torch.device("cpu")
POLL_SECONDS = 0.002
"""How often a broadcast between devices is looked at."""


def listen(name: str, world_size: int, backend: Literal["gloo", "nccl"], timeout: float) -> tuple[WeightGroup, Any]:
    """A new group and its store, where the ranks meet. The port is bound here, on `own_host()` alone, and told."""
    host = own_host()
    listener = socket.socket()
    listener.bind((host, 0))
    listener.listen(world_size + 8)
    port: int = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=timeout),
    )
    return WeightGroup(name, host, port, world_size, backend, timeout), store


class Member:
    """One rank of a group. Every call blocks, at most for the group's time-out; one thread calls, except for
    `abandon`.

    Args:
        store: from `listen`, of rank 0; the others connect to it.

    Raises:
        RerollError: the ranks did not meet, or the backend needs a device that is not here.
    """

    def __init__(self, group: WeightGroup, rank: int, store: Any = None) -> None:
        if group.backend == "nccl" and not torch.cuda.is_available():
            raise RerollError(f'{_named(group)}: nccl needs a CUDA device, and there is none here; give backend "gloo"')
        self.group = group
        self.device = torch.device("cuda", torch.cuda.current_device()) if group.backend == "nccl" else CPU
        self._abandoned = False
        try:
            self._group = _join(group, rank, store)
        except Exception as error:
            raise RerollError(f"{_named(group)}: rank {rank} could not join: {_reason(error)}") from error

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Sends the tensors from rank 0, or receives into them, which must be contiguous and on `device`.

        Raises:
            RerollError: another rank has left or ended, or did not take part within the time-out. The group can only
                be left then.
        """
        try:
            works = [dist.broadcast(tensor, src=0, group=self._group, async_op=True) for tensor in tensors]
            for work in works:
                self._wait(work)
        except Exception as error:
            raise RerollError(f"{_named(self.group)}: a broadcast failed: {_reason(error)}") from error

    def _wait(self, work: Any) -> None:
        """Between devices a work ends by itself only on the device, and torch would end the whole process when it
        does not."""
        if self.group.backend != "nccl":
            work.wait()
            return
        deadline = time.monotonic() + self.group.timeout
        while not work.is_completed():
            if self._abandoned or time.monotonic() > deadline:
                self._group.abort()
                raise TimeoutError("the group was left" if self._abandoned else f"{self.group.timeout:g} s are over")
            time.sleep(POLL_SECONDS)
        work.wait()

    def abandon(self) -> None:
        """From another thread: a broadcast that is under way may end. With gloo it does when another rank leaves."""
        self._abandoned = True

    def leave(self) -> None:
        """Closes the connections, at which whoever waits in the group gets an error."""
        dist.destroy_process_group(self._group)
        del self._group


def _join(group: WeightGroup, rank: int, store: Any) -> Any:
    from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world

    choose_interface()
    timeout = timedelta(seconds=group.timeout)
    if store is None:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            group.host, group.port, is_master=False, wait_for_workers=False, timeout=timeout
        )
    made, _ = _new_process_group_helper(
        group.world_size,
        rank,
        [],
        Backend(group.backend),
        PrefixStore(group.name, store),
        group_name=group.name,  # type: ignore[arg-type]
        # Of devices: beyond `Member._wait`, since torch ends the process when it is over.
        timeout=timeout if group.backend == "gloo" else 2 * timeout + timedelta(minutes=1),
    )
    _world.pg_group_ranks[made] = {number: number for number in range(group.world_size)}
    return made


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors after each other, uint8."""
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors])


def receive(member: Member, bucket: Sequence[TensorSpec], flattened: bool) -> dict[str, Tensor]:
    """The bucket's tensors from rank 0, each in memory of its own on the CPU."""
    if not flattened:
        found = {spec.name: torch.empty(spec.shape, dtype=dtype_of(spec), device=member.device) for spec in bucket}
        member.broadcast(list(found.values()))
        return {name: tensor.cpu() for name, tensor in found.items()}
    sizes = [spec.num_bytes for spec in bucket]
    bytes_ = torch.empty(sum(sizes), dtype=torch.uint8, device=member.device)
    member.broadcast([bytes_])
    parts = zip(bucket, torch.split(bytes_.cpu(), sizes), strict=True)
    # Copied: arithmetic may round otherwise on memory that begins anywhere, and this may not even be readable as it is.
    return {spec.name: part.clone().view(dtype_of(spec)).view(spec.shape) for spec, part in parts}


def specs(tensors: Mapping[str, Tensor]) -> list[TensorSpec]:
    """What the tensors are; of sharded ones, the whole."""
    return [TensorSpec(name, kind(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()]


def dtype_of(spec: TensorSpec) -> torch.dtype:
    found = getattr(torch, spec.dtype, None)
    if not isinstance(found, torch.dtype):
        raise RerollError(f"{spec.name!r} has dtype {spec.dtype!r}, which torch does not have")
    return found


def kind(dtype: torch.dtype) -> str:
    """The type as `TensorSpec` names it."""
    return str(dtype).removeprefix("torch.")


def _named(group: WeightGroup) -> str:
    return f"process group {group.name!r} ({group.backend}, {group.host}:{group.port})"


def _reason(error: Exception) -> str:
    """What happened, without gloo's place in its source and guesses at the cause."""
    text = re.sub(r"^\[\S+\] ", "", str(error).strip()).split("\n", 1)[0].split(". This is typically", 1)[0]
    return text or type(error).__name__
