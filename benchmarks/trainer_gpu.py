"""Memory, tokens per second and model FLOP utilisation of the trainer on a GPU, packed and padded.

    python benchmarks/trainer_gpu.py [--json FILE] [--rounds N] [--recompute] [--device cpu --tiny]

One rank through the sharded path in bfloat16, as a run on a GPU has it: a random Qwen3 of 0.5 B parameters, one
response in eight eight times as long as the others, micro-batches of 16,384 tokens. Packed rows are attended by
torch's variable-length kernel where it has one. Utilisation is the rate of a step's floating-point operations, by the
formula in `trainer.py`, over the rate of a large bfloat16 matrix product that was measured on the device. Without
`--recompute` the activations of a micro-batch should take about 30 GB. Numbers that are claimed are kept in
`benchmarks/results/`, as `trainer-gpu-DEVICE.json`.

`--device cpu --tiny` runs every line of it on a CPU, with a model whose numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from trainer import Workload, make_trainer, step_operations, trainer_step
from transformers import Qwen3Config, Qwen3ForCausalLM

from reroll.training.attention import has_varlen_kernel
from reroll.training.ranks import Device, Ranks
from reroll.training.sharding import load_policy
from reroll.training.step import PolicyTrainer

CONFIGS: dict[str, dict[str, Any]] = {
    "0.5B": {
        "vocab_size": 65536, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
WORKLOADS = {
    "0.5B": Workload("0.5B", "skewed", 64, 64, (192, 320)),
    "tiny": Workload("tiny", "skewed", 16, 8, (12, 20)),
}
PRODUCT_SIZES = {"0.5B": 8192, "tiny": 256}
NORM_TOLERANCE = 5e-2
"""Of bfloat16."""


def random_model(name: str, directory: Path) -> Path:
    """Writes a model with random weights in one of `CONFIGS`' shapes."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**CONFIGS[name])).save_pretrained(directory)
    return directory


@contextmanager
def open_trainer(directory: Path, device: Device, recompute: bool = False) -> Iterator[PolicyTrainer]:
    """A trainer of one rank that is sharded and computes in bfloat16, which on CUDA is what "auto" means."""
    ranks = Ranks(0, 1, device, "auto" if device == "cuda" else "bfloat16")
    ranks.join(None)
    try:
        yield make_trainer(load_policy(directory, 1.0, ranks, recompute), ranks, packed=False)
    finally:
        torch.distributed.destroy_process_group()


def select_packing(trainer: PolicyTrainer, packed: bool) -> None:
    trainer.settings = replace(trainer.settings, packed=packed)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def product_rate(device: torch.device, size: int) -> float:
    """Floating-point operations per second of a large bfloat16 matrix product, the best of a few."""
    left, right = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    seconds = []
    for _ in range(5):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(10):
            left @ right
        synchronize(device)
        seconds.append((time.perf_counter() - began) / 10)
    return 2.0 * size**3 / min(seconds)


def reset_peak(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Most memory of the device that tensors held at once; on a CPU, that the process held."""
    if device.type != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(trainer: PolicyTrainer, name: str, rounds: int) -> dict[str, Any]:
    """Of both ways to lay out a micro-batch: tokens per second and utilisation in each round, peak memory."""
    device = trainer.ranks.device
    model = trainer.policy.model
    samples = WORKLOADS[name].samples(model.config.vocab_size)
    tokens, operations = sum(len(sample.token_ids) for sample in samples), step_operations(model, samples)
    methods: dict[str, dict[str, Any]] = {
        method: {"tokens_per_second": [], "utilisation": [], "peak_bytes": 0} for method in ("packed", "padded")
    }
    rates = []
    for number in range(-1, rounds):  # the first one warms up
        rates.append(product_rate(device, PRODUCT_SIZES[name]))
        norms = {}
        for method, found in methods.items():
            select_packing(trainer, method == "packed")
            reset_peak(device)
            began = time.perf_counter()
            norms[method] = trainer_step(trainer, samples)
            synchronize(device)
            seconds = time.perf_counter() - began
            if number >= 0:
                found["tokens_per_second"].append(tokens / seconds)
                found["utilisation"].append(operations / seconds / rates[-1])
                found["peak_bytes"] = max(found["peak_bytes"], peak_bytes(device))
        if not math.isclose(*norms.values(), rel_tol=NORM_TOLERANCE):
            raise SystemExit(f"packed and padded rows have different gradient norms: {norms}")
    kernel = has_varlen_kernel(device, torch.bfloat16)
    pairs = zip(methods["packed"]["tokens_per_second"], methods["padded"]["tokens_per_second"], strict=True)
    return {"model": name, "parameters": sum(parameter.numel() for parameter in model.parameters()), "tokens": tokens,
            "operations": operations, "device": device_name(device), "torch": torch.__version__,
            "attention": {"packed": "torch's variable-length kernel" if kernel else "one call a length",
                          "padded": trainer.policy.padded_attention},
            "product_rate": rates[1:], "methods": methods,
            "packed_over_padded": statistics.median(packed / padded for packed, padded in pairs)}  # fmt: skip


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type != "cpu" else "cpu"


def show(result: dict[str, Any]) -> None:
    product = statistics.median(result["product_rate"])
    print(f"{result['model']}: {result['parameters'] / 1e6:.1f} M parameters on {result['device']}, ", end="")
    print(f"torch {result['torch']}")
    print(f"  {result['tokens']} tokens a step; a bfloat16 matrix product runs at {product / 1e12:.3g} TFLOP/s")
    for method, found in result["methods"].items():
        speed, utilisation = statistics.median(found["tokens_per_second"]), statistics.median(found["utilisation"])
        print(f"  {method}, {result['attention'][method]}: {speed:.0f} tokens/s, ", end="")
        print(f"{utilisation:.1%} of the product, {found['peak_bytes'] / 2**30:.2f} GiB", flush=True)
    print(f"  packed is {result['packed_over_padded']:.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model whose numbers mean nothing")
    parser.add_argument("--recompute", action="store_true", help="with activation checkpointing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    name = "tiny" if options.tiny else "0.5B"
    with tempfile.TemporaryDirectory() as scratch:
        directory = random_model(name, Path(scratch))
        with open_trainer(directory, options.device, options.recompute) as trainer:
            result = measure(trainer, name, options.rounds) | {"recompute": options.recompute}
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
