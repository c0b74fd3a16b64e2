"""The trainer's part of a checkpoint: saved by two ranks, taken up by any number."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import torch

from reroll.api import TrainingError
from reroll.checkpoints.store import CheckpointStore
from reroll.models.digest import state_digest
from reroll.models.load import load_model
from reroll.training.checkpoint import export_checkpoint

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import distance, ranks_of, samples_of, weights_of

SETTINGS = [
    "trainer.lr=1e-4", 'trainer.lr_decay_style="linear"', "trainer.lr_decay_iters=10", "trainer.lr_warmup_iters=2",
]  # fmt: skip


async def train(trainer, seeds):
    return [step for seed in seeds for step in await trainer.train(samples_of(seed=seed))]


@pytest.fixture(scope="module")
def saved(tiny_model, tmp_path_factory):
    """By number of ranks: a checkpoint after three steps, its digest, and what comes after two more."""
    folder = tmp_path_factory.mktemp("saved")

    async def run(size):
        async with ranks_of(folder, tiny_model, size, *SETTINGS) as trainer:
            await train(trainer, range(3))
            checkpoint = folder / f"checkpoint-{size}"
            checkpoint.mkdir()
            await trainer.save(checkpoint, background=False)
            digest = await trainer.weights_digest()
            metrics = await train(trainer, (3, 4))
            after = await trainer.weights_digest()
            return checkpoint, digest, metrics, after, await weights_of(trainer, folder / f"weights-{size}")

    return {size: asyncio.run(run(size)) for size in (1, 2)}


def resumed(tmp_path, model, size, checkpoint, work=train, version=3):
    async def run():
        async with ranks_of(tmp_path, model, size, *SETTINGS) as trainer:
            await trainer.restore(checkpoint, version)
            digest = await trainer.weights_digest()
            metrics = await work(trainer, (3, 4))
            return digest, metrics, await trainer.weights_digest(), await weights_of(trainer, tmp_path / "weights")

    return asyncio.run(run())


@pytest.mark.parametrize(("before", "size"), [(1, 1), (2, 1), (2, 2), (2, 4), (1, 2)])
def test_any_number_of_ranks_goes_on(tiny_model, tmp_path, saved, before, size):
    checkpoint, digest, metrics, after, weights = saved[before]
    found_digest, found_metrics, found_after, found_weights = resumed(tmp_path, tiny_model, size, checkpoint)
    assert found_digest == digest
    assert [step["lr"] for step in found_metrics] == [step["lr"] for step in metrics]
    assert [step["lr"] for step in metrics] == pytest.approx([8.75e-5, 7.5e-5])
    if size == before:
        assert found_after == after
        assert [step["grad_norm"] for step in found_metrics] == [step["grad_norm"] for step in metrics]
    else:
        assert distance(weights, found_weights) < 1e-5


def test_a_cold_optimizer_would_go_elsewhere(tiny_model, tmp_path, saved):
    checkpoint, _, _, _, weights = saved[1]
    export_checkpoint(checkpoint, tiny_model, tmp_path / "model")

    async def run():
        async with ranks_of(tmp_path, tmp_path / "model", 1, *SETTINGS) as trainer:
            assert await trainer.weights_digest() == saved[1][1]
            await train(trainer, (3, 4))
            return await weights_of(trainer, tmp_path / "weights")

    assert distance(weights, asyncio.run(run())) > 1e-5


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_what_is_written_in_the_background_is_the_state_at_the_call(tiny_model, tmp_path, size):
    async def run():
        async with ranks_of(tmp_path, tiny_model, size, "trainer.lr=1e-2") as trainer:
            await train(trainer, range(2))
            digest = await trainer.weights_digest()
            folder = tmp_path / f"background-{size}"
            folder.mkdir()
            saving = asyncio.create_task(trainer.save(folder, background=True))
            await asyncio.sleep(0)
            await train(trainer, range(2, 6))
            await saving
            assert await trainer.weights_digest() != digest
            return folder, digest, await trainer.weights_digest()

    async def go_on(folder, seeds):
        async with ranks_of(tmp_path, tiny_model, size, "trainer.lr=1e-2") as trainer:
            await trainer.restore(folder, 2)
            digest = await trainer.weights_digest()
            await train(trainer, seeds)
            return digest, await trainer.weights_digest()

    folder, digest, after = asyncio.run(run())
    assert asyncio.run(go_on(folder, range(2, 6))) == (digest, after)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_random_states_go_on(model_maker, tmp_path, size):
    """With dropout the next step depends on them; a new process begins with those of its seed."""
    folder = model_maker(tmp_path / "model", attention_dropout=0.3)
    settings = ["trainer.disable_dropout=false", "trainer.lr=1e-3"]

    async def run(checkpoint, restore):
        async with ranks_of(tmp_path, folder, size, *settings) as trainer:
            if restore:
                await trainer.restore(checkpoint, 2)
            else:
                await train(trainer, range(2))
                checkpoint.mkdir()
                await trainer.save(checkpoint, background=False)
            return [step["grad_norm"] for step in await train(trainer, (2, 3))]

    checkpoint = tmp_path / "checkpoint"
    first = asyncio.run(run(checkpoint, restore=False))
    assert asyncio.run(run(checkpoint, restore=True)) == first


OTHERS = {
    "deeper": ({"num_hidden_layers": 3}, r"lacks model\.model\.layers\.2"),
    "shallower": ({"num_hidden_layers": 1}, r"model\.model\.layers\.1.* which this model has not"),
    "wider": ({"intermediate_size": 96}, r"model\.model\.layers\.0\.mlp\..* with shape \[64.* instead of \[96"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_model_is_refused_by_name(model_maker, tmp_path, saved, name):
    changes, message = OTHERS[name]
    other = model_maker(tmp_path / "other", **changes)
    with pytest.raises(TrainingError, match=message) as caught:
        resumed(tmp_path, other, 2, saved[2][0])
    assert str(saved[2][0]) in str(caught.value)
    assert "another model" in str(caught.value)


def test_the_reference_stays_the_starting_checkpoint(tiny_model, tmp_path, saved):
    """A restored trainer exports its policy; what it measures the distance to is the model that the run began with."""
    checkpoint, digest, *_ = saved[2]
    settings = [*SETTINGS, "objective.use_kl_loss=true", "objective.kl_loss_coef=0.1"]
    samples = samples_of()

    async def run():
        async with ranks_of(tmp_path, tiny_model, 2, *settings) as trainer:
            start = await trainer.logprobs(samples)
            assert sum((await trainer.reference_divergence(samples, keep=False)).values()) == pytest.approx(0, abs=1e-4)
            await trainer.restore(checkpoint, 3)
            now = await trainer.logprobs(samples)
            divergence = await trainer.reference_divergence(samples, keep=False)
            await trainer.export_hf(tmp_path / "hf")
            return start, now, divergence

    start, now, divergence = asyncio.run(run())
    for sample, before, after in zip(samples, start, now, strict=True):
        assert divergence[sample.slot] == pytest.approx(sum(after) - sum(before), abs=1e-4)
    assert max(map(abs, divergence.values())) > 1e-2
    assert state_digest(load_model(tmp_path / "hf").state_dict().items()) == digest


def test_the_first_truncated_file_is_named_and_an_older_checkpoint_taken(tiny_model, tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")

    async def run():
        async with ranks_of(tmp_path, tiny_model, 2, *SETTINGS) as trainer:
            for step in (1, 2):
                await train(trainer, [step])
                await trainer.save(store.begin(step), background=step == 2)
                store.complete(step, step, {})

    asyncio.run(run())
    newest = store.folder(2)
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "manifest.json"} == {path.name for path in files}
    assert CheckpointStore(store.root).whole().found.folder == newest
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        found, passed_over = CheckpointStore(store.root).whole()
        assert found.folder == store.folder(1)
        assert len(passed_over) == 1
        assert str(newest) in passed_over[0]
        assert path.name in passed_over[0]
        path.write_bytes(content)
    assert CheckpointStore(store.root).whole() == (store.check(newest), [])


def test_a_checkpoint_becomes_a_model_directory(tiny_model, tmp_path, saved):
    for size in (1, 2):
        export_checkpoint(saved[size][0], tiny_model, tmp_path / f"m{size}", shard_bytes=20_000)
        assert len(list((tmp_path / f"m{size}").glob("*.safetensors"))) > 1
        assert state_digest(load_model(tmp_path / f"m{size}").state_dict().items()) == saved[size][1]
    export_checkpoint(saved[1][0], tiny_model, tmp_path / "half", dtype="bfloat16")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert all(t.dtype == torch.float32 for t in load_model(tmp_path / "half").parameters())
