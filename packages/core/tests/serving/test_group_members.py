"""Two processes in a weight group, with nothing around it: on CPUs, and between two devices."""

import multiprocessing
import queue

import pytest
import torch

from reroll.api import RerollError
from reroll.models.process_groups import Member, flatten, listen, receive, specs

BACKENDS = [
    "gloo",
    pytest.param(
        "nccl",
        marks=[pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")],
    ),
]
TIMEOUT = 60.0


def tensors_of(device):
    generator = torch.Generator().manual_seed(0)
    made = {"a": torch.randn(300, 7, generator=generator), "b": torch.randn(50, generator=generator).bfloat16()}
    return {name: tensor.to(device) for name, tensor in made.items()}


def device_of(backend, rank):
    if backend == "nccl":
        torch.cuda.set_device(rank)
        return f"cuda:{rank}"
    return "cpu"


def engine(backend, told, answers):
    """Rank 1: receives both ways, then takes part no more until it is told to leave."""
    device_of(backend, 1)
    answers.put("here")  # it takes longer to start than ranks wait for each other
    member = Member(told.get(timeout=TIMEOUT), 1)
    expected = tensors_of("cpu")
    for flattened in (True, False):
        found = receive(member, specs(expected), flattened)
        answers.put(all(torch.equal(found[name], tensor) for name, tensor in expected.items()))
    told.get(timeout=TIMEOUT)
    member.leave()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_sent_arrives_and_a_broadcast_that_nobody_takes_part_in_ends(backend):
    device = device_of(backend, 0)
    context = multiprocessing.get_context("spawn")
    told, answers = context.Queue(), context.Queue()
    process = context.Process(target=engine, args=(backend, told, answers), daemon=True)
    process.start()
    try:
        assert answers.get(timeout=TIMEOUT) == "here"
        group, store = listen(f"members-{backend}", 2, backend, 5.0)
        told.put(group)
        member, tensors = Member(group, 0, store), list(tensors_of(device).values())
        member.broadcast([flatten(tensors)])
        member.broadcast(tensors)
        assert [answers.get(timeout=TIMEOUT) for _ in range(2)] == [True, True]
        with pytest.raises(RerollError, match=f"process group 'members-{backend}' .* a broadcast failed"):
            member.broadcast(tensors)
        member.leave()
        told.put("leave")
        process.join(TIMEOUT)
        assert process.exitcode == 0
        with pytest.raises(queue.Empty):
            answers.get_nowait()
    finally:
        process.kill()
