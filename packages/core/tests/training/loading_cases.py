"""Two ranks that load one model directory after the other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from forked_workers import forkserver


def loaded_on_ranks(directories, size=2):
    """What rank 0 says of each directory: a dictionary, see `_load`."""
    context = forkserver()
    address, answers = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_rank, args=(rank, size, address, answers, directories)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return [answers.get(timeout=120) for _ in directories]
    finally:
        for process in processes:
            process.join(10)
            process.kill()


def _rank(rank, size, address, answers, directories):
    import torch

    from reroll.training.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks(rank, size, "cpu", "float32")
    if rank == 0:
        found = ranks.listen("127.0.0.1")
        for _ in range(size - 1):
            address.put(found)
    ranks.join(None if rank == 0 else address.get(timeout=60))
    for directory in directories:
        answer = _load(Path(directory), ranks)
        if rank == 0:
            answers.put(answer)
    ranks.meet()


def _load(directory, ranks):
    """Exports the model, and gives the `digest` of its weights, `tied` embeddings, `packing`: why not, and `noted`:
    forward passes that FSDP still expects a backward pass of; or the `error` instead of all of them."""
    from reroll.api import RerollError
    from reroll.models.digest import state_digest
    from reroll.training.export import export_hf
    from reroll.training.sharding import TOLERANCE, load_policy
    from reroll.training.tensors import named_tensors

    try:
        policy = load_policy(directory, 1.0, ranks, recompute=False)
    except RerollError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    packing = ""
    try:
        policy.check_packing(ranks.device, TOLERANCE[ranks.compute_type])
    except RerollError as error:
        packing = str(error)
    model = policy.model
    export_hf(named_tensors(model), directory / "exported", directory, ranks)
    return {
        "digest": state_digest(model.state_dict().items()),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "attention": policy.padded_attention,
        "packing": packing,
        "noted": len(policy._get_fsdp_state()._comm_ctx.post_forward_order),
    }
