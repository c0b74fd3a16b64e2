"""The other process of a weight group; in a module of its own, which a new interpreter can import."""

import torch

from reroll.models.process_groups import Member, receive, specs

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
