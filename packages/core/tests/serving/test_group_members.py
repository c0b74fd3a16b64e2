"""Two processes in a weight group, with nothing around it: on CPUs, and between two devices."""

import multiprocessing
import queue

import pytest
import torch
from group_member import TIMEOUT, device_of, engine, tensors_of

from reroll.api import RerollError
from reroll.models.process_groups import Member, flatten, listen

BACKENDS = [
    "gloo",
    pytest.param(
        "nccl",
        marks=[pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")],
    ),
]


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
