"""How far an engine's log-probabilities are from the trainer's, and how much of that is bfloat16.

    python benchmarks/sglang_gap.py --python SGLANG_PYTHON [--model MODEL] [--json FILE]

Real SGLang servers, in float32 and in bfloat16, and the embedded engine sample responses to the same prompts; the
trainer's model scores each one's tokens in float32. A forward pass of the trainer in bfloat16 over those same tokens
says what rounding alone makes of them, without another engine. Differences are of log-probabilities, absolute, over
sampled tokens. The ratio is the mean difference of the bfloat16 server over that of the trainer's own bfloat16 pass.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from reroll.api import Completion, EngineContext, EngineError, GenerationRequest, SamplingParams
from reroll.models.files import resolve_model
from reroll.placement.local import LocalPlacement
from reroll.serving.local.engine import LocalEngine, LocalEngineConfig
from reroll.serving.sglang.client import SGLangClient
from reroll.serving.sglang.launcher import ServerLauncher
from reroll.training.ranks import Ranks
from reroll.training.sharding import load_policy

CPU_OPTIONS = ("--device", "cpu", "--attention-backend", "torch_native", "--mem-fraction-static", "0.1",
               "--max-total-tokens", "65536")  # fmt: skip
KEY = "a-key-of-this-benchmark"
START_SECONDS = 900.0
Sampled = list[tuple[list[int], Completion]]


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (12,), generator=generator).tolist() for _ in range(count)]


async def sample(engine: Any, given: Sequence[list[int]], tokens: int) -> Sampled:
    async def one(number: int, ids: list[int]) -> tuple[list[int], Completion]:
        return ids, await engine.generate(
            GenerationRequest(f"gap-{number}", ids, SamplingParams(max_new_tokens=tokens, seed=number))
        )

    return list(await asyncio.gather(*(one(number, ids) for number, ids in enumerate(given))))


async def of_embedded(directory: Path, folder: Path, given: Sequence[list[int]], tokens: int) -> Sampled:
    placement = LocalPlacement()
    context = EngineContext("engine-0", directory, 0, placement, folder / "engine.log")
    engine = await LocalEngine.start(LocalEngineConfig(), context)
    try:
        return await sample(engine, given, tokens)
    finally:
        await engine.close()
        await placement.close()


async def of_server(url: str, given: Sequence[list[int]], tokens: int) -> Sampled:
    client = SGLangClient(url, KEY, connections=64)
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    if (await client.ask("/health", method="GET"))[0] == 200:
                        break
                except EngineError:
                    pass
                await asyncio.sleep(0.5)
        return await sample(client, given, tokens)
    finally:
        await client.close()


def of_launched(
    python: str, directory: Path, dtype: str, device: str, folder: Path, given: Sequence[list[int]], tokens: int
) -> Sampled:
    launcher = ServerLauncher(python, folder / f"sglang-{dtype}.log")
    options = ["--model-path", str(directory), "--weight-version", "0", "--dtype", dtype]
    environment = {"SGLANG_USE_CPU_ENGINE": "1"} if device == "cpu" else {}
    host, port = launcher.launch([*options, *(CPU_OPTIONS if device == "cpu" else ())], environment, KEY)
    try:
        return asyncio.run(of_server(f"http://{host}:{port}", given, tokens))
    except TimeoutError:
        raise SystemExit(f"the server was not ready; its last lines:\n{launcher.last_lines()}") from None
    finally:
        launcher.stop()


@torch.no_grad()
def scores(model: Any, sampled: Sampled) -> torch.Tensor:
    """Log-probabilities of all sampled tokens, one after another: [N]."""
    found = []
    for ids, completion in sampled:
        row = torch.tensor([ids + completion.output_ids])
        logits = model(input_ids=row, use_cache=False).logits[0, len(ids) - 1 : -1].float()
        chosen = torch.tensor(completion.output_ids)[:, None]
        found.append(torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0])
    return torch.cat(found)


def gap(one: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    difference = (one - other).abs()
    return {"mean": difference.mean().item(), "max": difference.max().item(), "tokens": len(one)}


def measure(model: str, sources: dict[str, Any], count: int, tokens: int) -> dict[str, Any]:
    """Gaps by source; each is called with directory, prompts and tokens, and gives what was sampled."""
    directory = resolve_model(model).directory
    exact = load_policy(directory, 1.0, Ranks(0, 1, "cpu", "float32"), False).model.eval()
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    given = prompts(count, exact.config.vocab_size)
    engines, rounding = {}, {}
    for name, source in sources.items():
        sampled = [pair for pair in source(directory, given, tokens) if pair[1].output_ids]
        wanted = scores(exact, sampled)
        theirs = torch.tensor([value for _, completion in sampled for value in completion.logprobs])
        engines[name], rounding[name] = gap(theirs, wanted), gap(scores(rounded, sampled), wanted)
    result: dict[str, Any] = {"model": model, "engines": engines, "trainer_bfloat16": rounding}
    if "sglang-bfloat16" in engines:
        result["ratio"] = engines["sglang-bfloat16"]["mean"] / rounding["sglang-bfloat16"]["mean"]
    return result


def show(result: dict[str, Any]) -> None:
    print(f"{result['model']}: mean and largest difference to the trainer in float32, over sampled tokens")
    for name, found in result["engines"].items():
        rounding = result["trainer_bfloat16"][name]
        print(f"  {name}: {found['mean']:.2e}, {found['max']:.2e} over {found['tokens']} tokens; ", end="")
        print(f"the trainer in bfloat16 on the same: {rounding['mean']:.2e}, {rounding['max']:.2e}")
    if "ratio" in result:
        print(f"  the bfloat16 server's mean is {result['ratio']:.2f}x that of the trainer's own bfloat16", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REROLL_SGLANG_PYTHON"), help="of SGLang's environment")
    parser.add_argument("--model", default="builtin:tiny-math")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the servers")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a response")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    if not options.python:
        parser.error("--python must name the interpreter of an environment with SGLang")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def server(dtype: str) -> Any:
            return lambda directory, given, tokens: of_launched(
                options.python, directory, dtype, options.device, folder, given, tokens
            )

        def embedded(directory: Path, given: Sequence[list[int]], tokens: int) -> Sampled:
            return asyncio.run(of_embedded(directory, folder, given, tokens))

        sources = {"embedded": embedded} | {f"sglang-{dtype}": server(dtype) for dtype in ("float32", "bfloat16")}
        result = measure(options.model, sources, options.prompts, options.tokens)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
