"""What a rank holds at most. In processes of their own, of which the system counts the peak."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from forked_workers import forkserver
from memory_cases import growth_of_a_step, measured_worker
from training_cases import ranks_of, samples_of

MB = 1024**2


@pytest.fixture(scope="module")
def large_model(model_maker, tmp_path_factory):
    """About 60 million parameters, 240 MB, of which no tensor has more than 8 MB."""
    return model_maker(
        tmp_path_factory.mktemp("large"), hidden_size=512, intermediate_size=2048,
        num_hidden_layers=14, num_attention_heads=8, num_key_value_heads=8, head_dim=64, initializer_range=0.02,
    )  # fmt: skip


def rss(worker):
    return _status(worker, "VmRSS")


def peak(worker):
    return _status(worker, "VmHWM")


def _status(worker, name):
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


async def growth(trainer, work):
    """Bytes by which each rank grew at most while `work` was done."""
    await trainer._together("trim")
    before = []
    for worker in trainer.workers:
        Path(f"/proc/{worker.process.pid}/clear_refs").write_text("5")
        before.append(rss(worker))
    await work
    return [peak(worker) - start for worker, start in zip(trainer.workers, before, strict=True)]


def measured(folder, model, size):
    """Bytes of parameters and optimizer state by rank, and the growth of each rank in each operation."""

    async def work():
        found = {}
        async with ranks_of(folder, model, size, "trainer.lr=1e-4", before=measured_worker) as trainer:
            found["load"] = await trainer._together("load_growth")
            await trainer.train(samples_of(4))
            memory = await trainer.memory()
            for background in (False, True):
                name = f"save-{background}"
                (folder / name).mkdir(parents=True)
                found[name] = await growth(trainer, trainer.save(folder / name, background))
            found["export_hf"] = await growth(trainer, trainer.export_hf(folder / "hf"))
            found["export_weights"] = await growth(trainer, trainer.export_weights(folder / "buckets", 16 * MB))
            found["one bucket"] = await growth(trainer, trainer.export_weights(folder / "bucket", 10**12))
        async with ranks_of(folder, model, size, "trainer.lr=1e-4", before=measured_worker) as trainer:
            await trainer.train(samples_of(4))
            found["restore"] = await growth(trainer, trainer.restore(folder / "save-False", 1))
        return memory, found

    return asyncio.run(work())


@pytest.mark.slow
def test_no_rank_of_four_holds_the_whole_model(large_model, tmp_path):
    alone, everything = measured(tmp_path / "one", large_model, 1)
    total = alone[0]["parameters"]
    assert total > 220 * MB
    ranks, found = measured(tmp_path / "four", large_model, 4)
    for held in ranks:
        assert held["parameters"] <= 0.3 * total
        assert held["optimizer"] <= 0.3 * alone[0]["optimizer"]
    assert len(list((tmp_path / "four" / "hf").glob("*.safetensors"))) > 4
    # Of loading, with the forward passes that check the head: a rank's part, and what is gathered for two layers.
    assert all(value < 0.8 * total for value in found["load"]), found["load"]
    for name in ("save-False", "export_hf", "export_weights", "restore"):
        assert all(value < 0.4 * total for value in found[name]), (name, found[name])
    # A copy of the rank's part of parameters and moments, three quarters of a model on four ranks.
    assert all(value < 0.95 * total for value in found["save-True"])
    for whole in (everything["load"][0], everything["save-True"][0] / 2, found["one bucket"][0]):
        assert whole > 0.95 * total, "the measurement does not see a whole model"


@pytest.mark.slow
def test_a_step_needs_little_more_for_a_large_vocabulary():
    """Beyond parameters, gradients and optimizer state: 8 sequences of 1,024 tokens."""
    found = {}
    for vocabulary in (1_000, 150_000):
        ours, theirs = forkserver().Pipe(duplex=False)
        process = forkserver().Process(target=growth_of_a_step, args=(vocabulary, theirs))
        process.start()
        theirs.close()
        found[vocabulary] = ours.recv()
        process.join()
    assert found[150_000] < 1.5 * found[1_000], found
