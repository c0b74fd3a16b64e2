"""The trainer as it is on a GPU: one rank, sharded, in bfloat16, with packed rows.

`hatch run test-gpu -s` runs it on a CUDA device, with a model of 0.5 B parameters, and prints memory, tokens per second
and utilisation. The same lines run with a tiny model on a CPU, so that only the device is new there.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reroll.training.cut import MicroBatchRule, cut_collection
from reroll.training.sharding import TOLERANCE
from reroll.training.tensors import whole

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
MODELS = {"cuda": "0.5B", "cpu": "tiny"}
GRADIENT_TOLERANCE = 5e-2
"""Length of the difference of two gradients in bfloat16, over the length of one."""
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def benchmark():
    """`benchmarks/trainer_gpu.py`, which has the models and measures them."""
    sys.path.append(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("trainer_gpu", BENCHMARKS / "trainer_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module", params=[pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA]), "cpu"])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def trainer(benchmark, device, tmp_path_factory):
    directory = benchmark.random_model(MODELS[device], tmp_path_factory.mktemp("random"))
    with benchmark.open_trainer(directory, device) as made:
        yield made


@pytest.fixture(scope="module")
def samples(benchmark, device):
    return benchmark.WORKLOADS[MODELS[device]].samples(benchmark.CONFIGS[MODELS[device]]["vocab_size"])[:16]


def step_of(benchmark, trainer, samples, packed):
    """The whole step and its micro-batches, laid out one way."""
    benchmark.select_packing(trainer, packed)
    ((step,),) = cut_collection(samples, len(samples), 1, MicroBatchRule(8192, packed=packed))
    return step, trainer.micro_batches(step)


def gradient(benchmark, trainer, samples, packed):
    trainer.policy.zero_grad(set_to_none=True)
    step, batches = step_of(benchmark, trainer, samples, packed)
    trainer.accumulate_gradients(batches, step.totals, None, anchored=False)
    found = torch.cat([whole(parameter.grad).flatten() for parameter in trainer.policy.parameters()])
    trainer.policy.zero_grad(set_to_none=True)
    return found


def logprobs(benchmark, trainer, samples, packed):
    """By sample, in the training forward and in the scoring pass."""
    step, batches = step_of(benchmark, trainer, samples, packed)
    found = {}
    for indices, batch in zip(step.micro_batches, batches, strict=True):
        trained, scored = trainer.policy.logprobs(batch)[0].detach(), trainer.policy.score(batch)
        for number, index in enumerate(indices):
            found[index] = torch.stack([trained, scored])[:, batch.response_N == number].float().cpu()
    return torch.cat([found[index] for index in range(len(samples))], dim=1)


def test_packed_and_padded_rows_have_one_gradient(benchmark, trainer, samples):
    packed, padded = (gradient(benchmark, trainer, samples, packed) for packed in (True, False))
    difference = ((packed - padded).norm() / padded.norm()).item()
    print(f"\ngradients of packed and padded rows differ by {difference:.3g} of their length")
    assert difference < GRADIENT_TOLERANCE
    fewer = gradient(benchmark, trainer, samples[:-1], True)
    assert ((fewer - padded).norm() / padded.norm()).item() > 2 * GRADIENT_TOLERANCE


def test_the_training_forward_scores_as_the_scoring_pass_does(benchmark, trainer, samples):
    found = {packed: logprobs(benchmark, trainer, samples, packed) for packed in (True, False)}
    gaps = {packed: (both[0] - both[1]).abs().mean().item() for packed, both in found.items()}
    across = (found[True] - found[False]).abs().mean().item()
    print(f"\nmean gap of training and scoring: packed {gaps[True]:.3g}, padded {gaps[False]:.3g}", end="")
    print(f"; of packed and padded rows: {across:.3g}")
    assert max(gaps.values()) <= trainer.scoring.tolerance
    assert across <= TOLERANCE[torch.bfloat16]
    swapped = (found[True].flip(1) - found[False]).abs().mean().item()
    assert swapped > 2 * across


def test_the_benchmark_measures(device, tmp_path):
    arguments = ["--json", str(tmp_path / "found.json"), "--device", device, "--rounds", "2"]
    command = [sys.executable, str(BENCHMARKS / "trainer_gpu.py"), *arguments, *(["--tiny"] if device == "cpu" else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["model"] == MODELS[device]
    for method in ("packed", "padded"):
        assert found["methods"][method]["peak_bytes"] > 4 * found["parameters"]
        assert all(value > 0 for value in found["methods"][method]["utilisation"])
