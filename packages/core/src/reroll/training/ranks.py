"""The trainer's ranks, as one of them sees them. One rank alone on a CPU has no process group and needs none."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from reroll.api import TrainingError

Device = Literal["auto", "cpu", "cuda"]
ComputeType = Literal["auto", "float32", "bfloat16"]
TIMEOUT = timedelta(hours=1)
"""Of a collective. A rank that dies ends the run at once, whatever the others wait for."""


class Ranks:
    """Rank `rank` of `size`, with the devices and types that it computes in.

    Attributes:
        device: this rank's.
        compute_type: of the forward and backward pass; parameters, optimizer and reductions stay in float32.
        sharded: whether parameters are spread over ranks; `mesh` is their one-dimensional device mesh.
    """

    def __init__(self, rank: int, size: int, device: Device, compute_type: ComputeType) -> None:
        self.rank = rank
        self.size = size
        self.device = _device(device, rank)
        on_gpu = self.device.type == "cuda"
        wanted = ("bfloat16" if on_gpu else "float32") if compute_type == "auto" else compute_type
        self.compute_type = torch.bfloat16 if wanted == "bfloat16" else torch.float32
        self.sharded = size > 1 or on_gpu or self.compute_type is not torch.float32
        self.mesh: Any = None
        self.writing: Any = None
        """A group of its own for what is written beside training, which would disturb the order of collectives."""
        self._store: Any = None

    def listen(self, host: str) -> tuple[str, int]:
        """On rank 0: where the others meet. The port is bound here, on `host` alone, and told."""
        listener = socket.socket()
        listener.bind((host, 0))
        listener.listen(self.size + 8)
        port: int = listener.getsockname()[1]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            timeout=TIMEOUT,
        )
        return host, port

    def join(self, address: tuple[str, int] | None) -> None:
        """Meets the other ranks at `address`, from `listen` on rank 0; a single rank needs none."""
        if not self.sharded:
            return
        if self._store is None:
            if address is None:
                self._store = dist.HashStore()  # type: ignore[attr-defined]
            else:
                host, port = address
                self._store = dist.TCPStore(  # type: ignore[attr-defined]
                    host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT
                )
        self._agree_on_device()
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)
        self.mesh = dist.device_mesh.init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("ranks",))
        self.writing = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def _agree_on_device(self) -> None:
        """With fewer devices than ranks, some would find none and compute on a CPU."""
        self._store.set(f"device-{self.rank}", self.device.type)
        kinds = [self._store.get(f"device-{rank}").decode() for rank in range(self.size)]
        if len(set(kinds)) > 1:
            raise TrainingError(
                f"trainer.num_ranks = {self.size}, but {kinds.count('cuda')} of them have a CUDA device: "
                'lower it, or set trainer.device = "cpu"'
            )

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Adds each value over ranks; all of them name the same ones."""
        if self.size == 1:
            return dict(values)
        names = sorted(values)
        tensor = torch.tensor([values[name] for name in names], dtype=torch.float64)
        dist.all_reduce(tensor)
        return dict(zip(names, tensor.tolist(), strict=True))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The values of all ranks, those of rank 0 first, on the CPU; their number may differ from rank to rank."""
        if self.size == 1:
            return values.cpu()
        parts = [torch.empty(0)] * self.size
        dist.all_gather_object(parts, values.cpu())
        return torch.cat(parts)

    def meet(self) -> None:
        """Waits until every rank is here."""
        self.sum({"here": 1.0})


def _device(wanted: Device, rank: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            f'trainer.device = "cuda", but torch finds no CUDA device for rank {rank}: lower trainer.num_ranks to the '
            'number of devices, use "cpu", or install the CUDA build of torch'
        )
    device = torch.device("cuda", 0)  # the only one that a rank sees
    torch.cuda.set_device(device)
    return device
