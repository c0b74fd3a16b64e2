"""Process groups that carry weights from the trainer, rank 0, to one engine's ranks, and the format of what they carry.

Made as SGLang makes its own (`init_custom_process_group`, `FlattenedTensorBucket`), so that either side may be a real
server. A group needs no default process group, and is independent of one. Imported by workers only: brings torch.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
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
MEET_SECONDS = 0.01
"""How often a join looks whether the other ranks have come."""
LEFT = "the group was left"


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
    """One rank of a group. Every call blocks, at most for the group's time-out.

    Args:
        store: from `listen`, of rank 0; the others connect to it.
        left: set by another thread once nobody wants the group any more, at which joining ends, and a broadcast between
            devices. One with gloo ends when another rank leaves.

    Raises:
        RerollError: the ranks did not meet, or the backend needs a device that is not here.
    """

    def __init__(self, group: WeightGroup, rank: int, store: Any = None, left: threading.Event | None = None) -> None:
        if group.backend == "nccl" and not torch.cuda.is_available():
            raise RerollError(f'{_named(group)}: nccl needs a CUDA device, and there is none here; give backend "gloo"')
        self.group = group
        self.device = torch.device("cuda", torch.cuda.current_device()) if group.backend == "nccl" else CPU
        self._left = threading.Event() if left is None else left
        try:
            self._store = _connect(group, self._left) if store is None else store
            if group.backend == "gloo":
                # Kept with the group: torch's own hold keeps no methods of Python.
                self._store = Meeting(self._store, self._left, group.timeout)
            self._group = _join(group, rank, self._store)
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
            if self._left.is_set() or time.monotonic() > deadline:
                self._group.abort()
                raise TimeoutError(LEFT if self._left.is_set() else f"{self.group.timeout:g} s are over")
            time.sleep(POLL_SECONDS)
        work.wait()

    def leave(self) -> None:
        """Closes the connections, at which whoever waits in the group gets an error."""
        dist.destroy_process_group(self._group)
        del self._group, self._store


class Meeting(dist.Store):  # type: ignore[name-defined, misc]
    """The store as gloo uses it while ranks meet. torch's own waits for the other ranks until the time-out, and nothing
    ends that early."""

    def __init__(self, store: Any, left: threading.Event, timeout: float) -> None:
        super().__init__()
        self._real = store
        self._left = left
        self._limit = timeout

    def set(self, key: str, value: Any) -> None:
        self._real.set(key, value)

    def get(self, key: str) -> Any:
        self.wait([key])
        return self._real.get(key)

    def add(self, key: str, amount: int) -> Any:
        return self._real.add(key, amount)

    def check(self, keys: list[str]) -> Any:
        return self._real.check(keys)

    def delete_key(self, key: str) -> Any:
        return self._real.delete_key(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._limit if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + seconds
        while not self._real.check(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the other ranks did not come within {seconds:g} s")
            if self._left.wait(MEET_SECONDS):
                raise TimeoutError(LEFT)


def _connect(group: WeightGroup, left: threading.Event) -> Any:
    """The store of rank 0, which a thread of its own connects to: where a listener says nothing torch waits for
    ever, and nothing ends that but the other end. A store that is reached too late does nothing, and goes."""
    reached: Future[Any] = Future()
    deadline = time.monotonic() + group.timeout
    threading.Thread(
        target=_reach, args=(group, deadline, left, reached), name=f"reach {group.name}", daemon=True
    ).start()
    while not wait([reached], MEET_SECONDS).done:
        if left.is_set():
            raise TimeoutError(LEFT)
        if time.monotonic() > deadline + MEET_SECONDS:
            raise TimeoutError(f"rank 0 did not answer within {group.timeout:g} s")
    return reached.result()


def _reach(group: WeightGroup, deadline: float, left: threading.Event, reached: Future[Any]) -> None:
    timeout = timedelta(seconds=group.timeout)
    while True:
        try:
            # Asked by hand first: where nobody listens torch would go on after the group was left.
            socket.create_connection((group.host, group.port), timeout=group.timeout).close()
            store = dist.TCPStore(  # type: ignore[attr-defined]
                group.host, group.port, is_master=False, wait_for_workers=False, timeout=timeout
            )
        except socket.gaierror as error:
            reached.set_exception(OSError(f"{group.host!r} is no address that is known here: {error.strerror}"))
            return
        except Exception as error:
            if left.is_set() or time.monotonic() > deadline:
                late = f"rank 0 was not reached within {group.timeout:g} s: {_reason(error)}"
                reached.set_exception(TimeoutError(LEFT if left.is_set() else late))
                return
        else:
            reached.set_result(store)
            return
        left.wait(MEET_SECONDS)


def _join(group: WeightGroup, rank: int, store: Any) -> Any:
    from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world

    choose_interface()
    timeout = timedelta(seconds=group.timeout)
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
