"""Trainers in real processes, and samples for them."""

import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from forked_workers import forked_workers

from reroll.api import Sample
from reroll.config import load_run_file
from reroll.placement.local import LocalPlacement
from reroll.plan import constant_length, correction, global_batch_size, scoring_reasons
from reroll.plugins import load_plugins
from reroll.training.trainer import start_trainer

RUN = """
[model]
path = "builtin:tiny-math"
[data]
task_set = { name = "addition", high = 40, verifier = "regex" }
verifiers = [{ name = "regex", pattern = '(-?\\d+)' }]
[rollout]
rollout_batch_size = 4
n_samples_per_prompt = 4
"""


def samples_of(count=8, seed=0, vocabulary=64, longest=24):
    """Samples of very different lengths, some with gaps in the mask as a tool message would leave."""
    draw = random.Random(seed)
    made = []
    for slot in range(count):
        prompt, response = draw.randint(1, 9), draw.randint(1, longest)
        mask = [False] * prompt + [draw.random() < 0.8 for _ in range(response - 1)] + [True]
        made.append(
            Sample(
                token_ids=[draw.randrange(2, vocabulary) for _ in mask],
                loss_mask=mask,
                rollout_logprobs=[draw.uniform(-4, -0.1) if active else 0.0 for active in mask],
                advantage=draw.uniform(-1, 1),
                reward=0.0,
                group_index=0,
                weight_version=0,
                slot=slot,
            )
        )
    return made


def run_of(folder, *overrides):
    path = Path(folder) / "run.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RUN, "utf-8")
    return load_run_file(path, list(overrides), load_plugins(), [])


@asynccontextmanager
async def ranks_of(folder, model, size, *overrides, steps=100, context=None, before=None, diagnose=None):
    """A trainer of `size` ranks on the model, with `overrides` of the run file. Ranks are forked, see
    `forked_workers`."""
    run = run_of(folder, f"trainer.num_ranks={size}", *overrides)
    placement = LocalPlacement()
    try:
        with forked_workers(context, before):
            trainer = await start_trainer(
                run,
                placement,
                model_directory=Path(model),
                temperature=1.0,
                global_batch_size=global_batch_size(run),
                total_steps=steps,
                constant_length=constant_length(run),
                correction=correction(run),
                scoring_pass=bool(scoring_reasons(run)),
                seed=0,
                logs=Path(folder) / f"logs-{size}",
                diagnostic_interval=diagnose,
            )
        yield trainer
    finally:
        await placement.close()


async def weights_of(trainer, folder, bucket_bytes=20_000):
    """The exported tensors by name."""
    buckets = await trainer.export_weights(Path(folder), bucket_bytes)
    return {name: tensor for bucket in buckets for name, tensor in load_file(bucket.path).items()}


def distance(one, other):
    """Relative, over all tensors together."""
    assert one.keys() == other.keys()
    difference = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return (difference / sum(float(tensor.double().square().sum()) for tensor in one.values())) ** 0.5


def trained(folder, model, size, collections, *overrides, before=None, diagnose=None):
    """Metrics of every step, and the weights after the last one."""

    async def work():
        async with ranks_of(folder, model, size, *overrides, before=before, diagnose=diagnose) as trainer:
            metrics = [step for samples in collections for step in await trainer.train(samples)]
            return metrics, await weights_of(trainer, Path(folder) / f"weights-{size}")

    return asyncio.run(work())


def averaged_over_ranks():
    """A worker that forgets that FSDP averages gradients over ranks."""
    from reroll.training.step import PolicyTrainer

    accumulate = PolicyTrainer.accumulate_gradients

    def wrong(self, *arguments, **keywords):
        metrics = accumulate(self, *arguments, **keywords)
        for parameter in self.policy.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.ranks.size
        return metrics

    PolicyTrainer.accumulate_gradients = wrong


def dies_after_its_connections():
    """Rank 1 leaves the others, who fail of that, half a second before its process ends."""
    from reroll.training.step import PolicyTrainer

    step = PolicyTrainer.step

    def dying(self, *arguments):
        if self.ranks.rank != 1:
            return step(self, *arguments)
        for number in range(3, 256):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    found.getpeername()  # not one that listens
                    found.shutdown(socket.SHUT_RDWR)
        time.sleep(0.5)
        os._exit(9)

    PolicyTrainer.step = dying
