"""A process of its own that trains and saves without an end."""

import asyncio
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import ranks_of, samples_of

from reroll.checkpoints.store import CheckpointStore


def train_and_save(root, model, size, told):
    """Goes on from the newest whole checkpoint. Tells (what, step, seconds): "restored" with whether the weights are
    those that the manifest speaks of, "began" with how long the save before took, "completed"."""
    os.setsid()
    asyncio.run(_train_and_save(CheckpointStore(Path(root) / "checkpoints"), Path(root), model, size, told))


async def _train_and_save(store, root, model, size, told):
    # This process is itself a fork of one without threads, and has none yet.
    context = multiprocessing.get_context("fork")
    async with ranks_of(root, model, size, "trainer.lr=1e-4", context=context) as trainer:
        if checkpoint := store.whole().found:
            await trainer.restore(checkpoint.folder / "trainer", checkpoint.manifest.step)
            same = await trainer.weights_digest() == checkpoint.manifest.facts["digest"]
            told.send(("restored", checkpoint.manifest.step, same))
        seconds = 0.3
        while True:
            await trainer.train(samples_of(seed=trainer.version))
            digest = await trainer.weights_digest()
            told.send(("began", trainer.version, seconds))
            start = time.perf_counter()
            folder = store.begin(trainer.version) / "trainer"
            folder.mkdir()
            await trainer.save(folder, background=trainer.version % 2 == 0)
            store.complete(trainer.version, trainer.version, {"digest": digest})
            store.prune(3)
            seconds = time.perf_counter() - start
            told.send(("completed", trainer.version, seconds))
