"""Tokens per second of the embedded engine against two ways that transformers offers.

    python benchmarks/engine.py [--quick] [--json FILE] [--rounds N] [--only tiny-64]

- `generate_batch`: transformers' own continuous batching, with a length for each request. It starts a
  manager in every call; that time is left out of the tokens per second and shown beside them.
- `plain`: the loop that one writes by hand: all requests in one left-padded batch, a DynamicCache, one
  token a row until the longest has ended, rows that ended earlier wasted.
- `engine`: `reroll.serving.local` in its worker process, called through the controller's side.

All three sample at temperature 1 and give the log-probability of every token. Lengths are forced: no
end-of-sequence token ends a response. Methods take turns, and each ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, LlamaConfig, Qwen3Config

from reroll.api import EngineContext, GenerationRequest, SamplingParams
from reroll.models.load import load_model
from reroll.placement.local import LocalPlacement
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.serving.local.sampling import Settings, sample, seed_key, uniforms

METHODS = ("engine", "generate_batch", "plain")
TARGETS = {"tiny": {"generate_batch": 10.0, "plain": 1.5}, "135M": {"generate_batch": 1.0, "plain": 1.0}}


@dataclass(frozen=True)
class Workload:
    """Requests of one measurement, lengths in tokens [low, high]: one response in four is drawn from `long`, the
    others from `short`."""

    model: str
    count: int
    prompt: tuple[int, int]
    short: tuple[int, int]
    long: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.model}-{self.count}" + ("-skewed" if self.long != self.short else "")

    def requests(self, vocab_size: int) -> list[GenerationRequest]:
        random = np.random.default_rng(0)
        found = []
        for index in range(self.count):
            low, high = self.long if index % 4 == 3 else self.short
            prompt = random.integers(0, vocab_size, random.integers(*self.prompt, endpoint=True)).tolist()
            sampling = SamplingParams(max_new_tokens=int(random.integers(low, high, endpoint=True)), seed=index)
            found.append(GenerationRequest(f"{index:04}", prompt, sampling))
        return found


WORKLOADS = [
    Workload("tiny", 64, (10, 40), (16, 96), (16, 96)),
    Workload("tiny", 256, (10, 40), (16, 96), (16, 96)),
    Workload("tiny", 64, (10, 40), (16, 64), (128, 256)),
    Workload("tiny", 256, (10, 40), (16, 64), (128, 256)),
    Workload("135M", 16, (10, 40), (4, 12), (24, 32)),
]


def model_directory(name: str, scratch: Path) -> Path:
    """The builtin model if it is there, else random weights in its shape, or in SmolLM2-135M's."""
    package = importlib.util.find_spec("reroll.models")
    builtin = Path(package.submodule_search_locations[0]) / "builtin" / "tiny-math" if package else Path()  # type: ignore[index]
    if name == "tiny" and (builtin / "model.safetensors").is_file():
        return builtin
    if name == "tiny":
        config: Any = Qwen3Config(
            vocab_size=300, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        )  # fmt: skip
    else:
        config = LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
        )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(scratch / name)
    return scratch / name


@torch.inference_mode()
def plain_loop(model: Any, requests: list[GenerationRequest]) -> int:
    """Generates all requests in one static batch; gives the number of tokens that were asked for."""
    rows, width = len(requests), max(len(request.input_ids) for request in requests)
    limits = [request.sampling.max_new_tokens for request in requests]
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.zeros(rows, width + max(limits), dtype=torch.long)
    for row, request in enumerate(requests):
        ids[row, width - len(request.input_ids) :] = torch.tensor(request.input_ids)
        mask[row, width - len(request.input_ids) :] = 1
    settings = Settings(np.ones(rows), np.ones(rows), np.full(rows, -1), np.zeros(rows))
    keys = np.array([seed_key(request.sampling.seed) for request in requests], np.uint64)
    cache, positions = DynamicCache(config=model.config), (mask[:, :width].cumsum(1) - 1).clamp(min=0)
    tokens, logprobs = [], []
    for step in range(max(limits)):
        logits = model(
            ids, attention_mask=mask[:, : width + step], position_ids=positions, use_cache=True, logits_to_keep=1,
            **{CACHE: cache},
        ).logits[:, -1]  # fmt: skip
        drawn = sample(logits, settings, uniforms(keys, np.full(rows, step)))
        tokens.append(drawn.tokens_R)
        logprobs.append(drawn.logprobs_R)
        ids, positions = torch.from_numpy(drawn.tokens_R)[:, None], positions[:, -1:] + 1
    outputs = np.stack(tokens, 1), np.stack(logprobs, 1)
    return sum(len(outputs[0][row, :limit]) for row, limit in enumerate(limits))


CACHE = "cache" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 20) else "past_key_values"


async def engine_round(engine: LocalEngine, requests: list[GenerationRequest]) -> int:
    done = await asyncio.gather(*(engine.generate(request) for request in requests))
    return sum(len(completion.output_ids) for completion in done)


def generate_batch_round(manager: Any, requests: list[GenerationRequest]) -> int:
    for request in requests:
        manager.add_request(request.input_ids, request.request_id, max_new_tokens=request.sampling.max_new_tokens)
    left, tokens = len(requests), 0
    while left:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("generate_batch's manager ended")
        if result is not None and result.is_finished():
            left, tokens = left - 1, tokens + len(result.generated_tokens)
    return tokens


async def measure(workload: Workload, directory: Path, rounds: int, log: Path) -> dict[str, Any]:
    """Tokens per second of each method in each round, and the ratios of the engine to the others."""
    model = load_model(directory)
    requests = workload.requests(model.config.vocab_size)
    placement = LocalPlacement()
    context = EngineContext(f"engine-{workload.name}", directory, 0, placement, log)
    engine = await LocalEngine.start(LocalEngineConfig(eos_token_ids=()), context)
    # Its manager replaces the model's attention, so that it has a model of its own.
    batching = copy.deepcopy(model)
    generation = GenerationConfig(do_sample=True, max_new_tokens=max(workload.long), eos_token_id=-1, pad_token_id=0)
    # Pages for all requests at once; by default it would take most of the machine's memory.
    continuous = transformers.ContinuousBatchingConfig(return_logprobs=True, num_blocks=2 * workload.count + 16)
    speeds: dict[str, list[float]] = {method: [] for method in METHODS}
    began = time.perf_counter()
    with batching.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=continuous, timeout=5
    ) as manager:
        generate_batch_round(manager, [GenerationRequest("start", [0], SamplingParams(max_new_tokens=1))])
        start_seconds = time.perf_counter() - began

        async def other(run: Callable[[], int]) -> int:
            return run()

        turns: dict[str, Callable[[], Awaitable[int]]] = {
            "engine": lambda: engine_round(engine, requests),
            "generate_batch": lambda: other(lambda: generate_batch_round(manager, requests)),
            "plain": lambda: other(lambda: plain_loop(model, requests)),
        }
        expected = sum(request.sampling.max_new_tokens for request in requests)
        for number in range(-1, rounds):  # the first one warms up
            for method in METHODS:
                began = time.perf_counter()
                tokens = await turns[method]()
                seconds = time.perf_counter() - began
                assert tokens == expected, f"{method} gave {tokens} tokens instead of {expected}"
                if number >= 0:
                    speeds[method].append(tokens / seconds)
    health = await engine.health()
    await engine.close()
    ratios = {
        method: statistics.median(a / b for a, b in zip(speeds["engine"], speeds[method], strict=True))
        for method in METHODS[1:]
    }
    return {"workload": asdict(workload), "name": workload.name, "response_tokens": expected,
            "tokens_per_second": speeds, "ratios": ratios, "generate_batch_start_seconds": start_seconds,
            "mean_batch": health["mean_batch"]}  # fmt: skip


def show(result: dict[str, Any], targets: dict[str, float]) -> None:
    medians = {method: statistics.median(speeds) for method, speeds in result["tokens_per_second"].items()}
    print(f"{result['name']}: {result['response_tokens']} response tokens, mean batch {result['mean_batch']:.1f}")
    for method, speed in medians.items():
        ratio = result["ratios"].get(method)
        against = f"  engine is {ratio:.2f}x (target {targets[method]:.1f}x)" if ratio else ""
        print(f"  {method:<15}{speed:>9.0f} tokens/s{against}", flush=True)
    start = result["generate_batch_start_seconds"]
    seconds = result["response_tokens"] / medians["generate_batch"] + start
    called = result["response_tokens"] / seconds
    print(f"  a generate_batch call also starts its manager in {start:.1f} s: {called:.0f} tokens/s with it, ", end="")
    print(f"engine is {medians['engine'] / called:.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, without the larger model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="name of one workload, such as tiny-64")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    chosen = [workload for workload in WORKLOADS if not options.quick or workload.model == "tiny"]
    if options.only:
        chosen = [workload for workload in WORKLOADS if workload.name == options.only]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for workload in chosen:
            directory, log = model_directory(workload.model, Path(scratch)), Path(scratch) / "engine.log"
            results.append(asyncio.run(measure(workload, directory, 1 if options.quick else options.rounds, log)))
            show(results[-1], TARGETS[workload.model])
    if options.json:
        options.json.write_text(json.dumps({"results": results, "targets": TARGETS}, indent=2) + "\n")


if __name__ == "__main__":
    main()
