"""Tokens per second of whole training steps, against a training loop that one writes by hand.

    python benchmarks/trainer.py [--quick] [--json FILE] [--rounds N] [--only tiny-skewed]

A step is forward, loss, backward, clipping and AdamW, on one core in float32; seconds are the thread's CPU time.
Methods:

- `padded`: the trainer as a run on a CPU has it: micro-batches of at most 16,384 tokens, cut by `cut.py`.
- `bare`: transformers alone: rows padded on the right, in the order given, as many a micro-batch as hold 16,384 tokens
  at the longest row's length; the model's own logits, a log-softmax over them, the same loss and metrics.
- `bare_best`: the same loop with the number of rows that is fastest for it, found before the rounds among a few.
- `packed`: the trainer with `trainer.packing = true`, where lengths are skewed.

Every method has a copy of the model. In every round all of them must find the same gradient norm. Only real tokens are
counted. Methods take turns, and each ratio is the median over rounds.

A step's floating-point operations, of a model whose L layers have H heads of size D, over sequences of lengths T_s:
`6·(parameters of the layers·Σ T_s + parameters of the output embedding·tokens that carry loss) + 12·L·H·D·Σ T_s²/2`,
the half because attention is causal. Their rate is compared with that of a matrix product on the same core, in the
same round.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from reroll.api import Sample
from reroll.models.load import load_model
from reroll.training.config import TrainerSection
from reroll.training.cut import MicroBatchRule, cut_collection, pass_tokens
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.scoring import ScoringRule
from reroll.training.step import PolicyTrainer, StepSettings

SECTION = TrainerSection()
TARGETS = {"equal": {"bare": 0.95}, "skewed": {"bare": 1.3}}
"""Least ratio of `padded` to another method."""
NORM_TOLERANCE = 1e-3
CLOCK = time.process_time
"""Of the one thread that computes: other processes on the machine count little."""
PRODUCT_SIZE = 2048


@dataclass(frozen=True)
class Workload:
    """One optimizer step. Lengths are in tokens, those of responses [low, high]; where they are skewed, one response in
    eight is eight times as long as drawn."""

    model: str
    kind: str
    count: int
    prompt: int
    response: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.model}-{self.kind}"

    def samples(self, vocabulary: int) -> list[Sample]:
        random = np.random.default_rng(0)
        lengths = [
            int(random.integers(*self.response, endpoint=True)) * (8 if self.kind == "skewed" and slot % 8 == 5 else 1)
            for slot in range(self.count)
        ]
        return [make_sample(random, vocabulary, self.prompt, length, slot) for slot, length in enumerate(lengths)]


WORKLOADS = [
    Workload("tiny", "equal", 256, 12, (52, 52)),
    Workload("tiny", "skewed", 256, 12, (24, 40)),
    Workload("135M", "equal", 8, 8, (56, 56)),
    Workload("135M", "skewed", 8, 8, (18, 30)),
]


def make_sample(random: np.random.Generator, vocabulary: int, prompt: int, response: int, slot: int) -> Sample:
    """Random tokens, of which those of the response carry loss."""
    return Sample(
        token_ids=random.integers(0, vocabulary, prompt + response).tolist(),
        loss_mask=[False] * prompt + [True] * response,
        rollout_logprobs=[0.0] * prompt + [-3.0] * response,
        advantage=float(random.uniform(-1, 1)),
        reward=0.0,
        group_index=slot // 8,
        weight_version=0,
        slot=slot,
    )


def model_directory(name: str, scratch: Path) -> Path:
    """The builtin model, or random weights in SmolLM2-135M's shape."""
    if name == "tiny":
        package = find_spec("reroll.models")
        assert package is not None and package.submodule_search_locations
        return Path(package.submodule_search_locations[0]) / "builtin" / "tiny-math"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(scratch / name)
    return scratch / name


def step_operations(model: Any, samples: Sequence[Sample]) -> float:
    """Floating-point operations of a step, by the formula at the top."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight.numel()
    embeddings = {id(module.weight): module.weight for module in (model.get_input_embeddings(), model.lm_head)}
    layers = sum(parameter.numel() for parameter in model.parameters()) - sum(map(torch.numel, embeddings.values()))
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    lengths = [len(sample.token_ids) for sample in samples]
    chosen = sum(sum(sample.loss_mask[1:]) for sample in samples)
    attention = config.num_hidden_layers * config.num_attention_heads * size * sum(length**2 for length in lengths)
    return 6.0 * (layers * sum(lengths) + head * chosen) + 12.0 * attention / 2


def make_trainer(policy: Policy, ranks: Ranks, packed: bool) -> PolicyTrainer:
    """A trainer with the recipe and settings of a run file that says nothing."""
    settings = StepSettings(**SECTION.step_settings(1), use_rollout_logprobs=False, packed=packed)
    return PolicyTrainer(policy, None, ranks, Recipe(), None, ScoringRule(**SECTION.scoring_rule(False)), settings)


def micro_batch_rule(trainer: PolicyTrainer) -> MicroBatchRule:
    cost = pass_tokens(str(trainer.ranks.device))
    return MicroBatchRule(SECTION.micro_batch_tokens, packed=trainer.settings.packed, pass_tokens=cost)


def trainer_step(trainer: PolicyTrainer, samples: Sequence[Sample]) -> float:
    """One optimizer step of the trainer, cutting included; gives the gradient norm."""
    (steps,) = cut_collection(samples, len(samples), 1, micro_batch_rule(trainer))
    # As the trainer's process has it.
    torch.use_deterministic_algorithms(trainer.ranks.device.type == "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        (metrics,) = trainer.train_collection(steps)
    finally:
        torch.use_deterministic_algorithms(False)
    return float(metrics["grad_norm"])


class BareLoop:
    """What one writes with transformers and torch alone: the same loss, summed over micro-batches of `rows`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        parameters = list(model.parameters())
        groups = [
            {"params": [found for found in parameters if found.ndim >= 2], "weight_decay": SECTION.weight_decay},
            {"params": [found for found in parameters if found.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (SECTION.adam_beta1, SECTION.adam_beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=SECTION.lr, betas=betas, eps=SECTION.adam_eps)

    def step(self, samples: Sequence[Sample], rows: int) -> float:
        """One optimizer step; gives the gradient norm."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(2)
        for start in range(0, len(samples), rows):
            loss, entropy = self.loss(samples[start : start + rows])
            (loss / len(samples)).backward()
            sums += torch.stack([loss.detach(), entropy]) / len(samples)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), SECTION.clip_grad)
        self.optimizer.step()
        assert sums.isfinite().all()
        return float(norm)

    def loss(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Summed over responses, of each the mean over its tokens: `max(-ρA, -clip(ρ)A)`, and the entropy."""
        width = max(len(sample.token_ids) for sample in samples)
        ids = torch.zeros(len(samples), width, dtype=torch.long)
        attention, mask = torch.zeros_like(ids), torch.zeros(len(samples), width)
        for row, sample in enumerate(samples):
            size = len(sample.token_ids)
            ids[row, :size] = torch.tensor(sample.token_ids)
            attention[row, :size] = 1
            mask[row, :size] = torch.tensor(sample.loss_mask, dtype=torch.float32)
        advantages = torch.tensor([sample.advantage for sample in samples])[:, None]
        logits = self.model(input_ids=ids, attention_mask=attention, use_cache=False).logits
        distribution = logits[:, :-1].log_softmax(-1)
        logprobs = distribution.gather(-1, ids[:, 1:, None]).squeeze(-1)
        mask = mask[:, 1:]
        weights = mask / mask.sum(1, keepdim=True)
        with torch.no_grad():
            entropy = -(weights * (distribution.exp() * distribution).sum(-1)).sum()
        ratio = torch.exp((logprobs - logprobs.detach()).clamp(-20, 20))
        clipped = ratio.clamp(0.8, 1.28)
        return (weights * torch.maximum(-ratio * advantages, -clipped * advantages)).sum(), entropy


def product_rate(size: int) -> float:
    """Floating-point operations per second of a large float32 matrix product, the best of a few."""
    left, right = torch.randn(2, size, size)
    seconds = []
    for _ in range(4):
        began = CLOCK()
        left @ right
        seconds.append(CLOCK() - began)
    return 2.0 * size**3 / min(seconds)


def make_methods(workload: Workload, model: Any, samples: Sequence[Sample]) -> dict[str, Callable[[], float]]:
    """Steps by name of the method, each warmed up by one and at the same weights."""
    budget = SECTION.micro_batch_tokens
    assert budget is not None
    fitting = min(len(samples), budget // max(len(sample.token_ids) for sample in samples))
    ranks = Ranks(0, 1, "cpu", "float32")

    def trainer(packed: bool) -> Callable[[], float]:
        return partial(trainer_step, make_trainer(Policy(copy.deepcopy(model), 1.0), ranks, packed), samples)

    def bare(rows: int) -> Callable[[], float]:
        return partial(BareLoop(copy.deepcopy(model)).step, samples, rows)

    methods = {"padded": trainer(packed=False), "bare": bare(fitting)}
    if workload.kind == "skewed":
        rows = fastest_rows(BareLoop(copy.deepcopy(model)), samples, fitting)
        methods |= {"bare_best": bare(rows), "packed": trainer(packed=True)}
    for method in methods.values():
        method()
    return methods


def measure(workload: Workload, directory: Path, rounds: int) -> dict[str, Any]:
    """Tokens per second of each method in each round, and the ratios of the padded trainer to the others."""
    model = load_model(directory)
    samples = workload.samples(model.config.vocab_size)
    tokens, operations = sum(len(sample.token_ids) for sample in samples), step_operations(model, samples)
    methods = make_methods(workload, model, samples)
    speeds: dict[str, list[float]] = {name: [] for name in methods}
    products, shares = [], []
    for _ in range(rounds):
        norms = {}
        products.append(product_rate(PRODUCT_SIZE))
        for name, method in methods.items():
            began = CLOCK()
            norms[name] = method()
            speeds[name].append(tokens / (CLOCK() - began))
        shares.append(operations * speeds["padded"][-1] / tokens / products[-1])
        if not all(math.isclose(norm, norms["bare"], rel_tol=NORM_TOLERANCE) for norm in norms.values()):
            raise SystemExit(f"{workload.name}: the methods find different gradient norms: {norms}")
    ratios = {
        name: statistics.median(ours / theirs for ours, theirs in zip(speeds["padded"], speeds[name], strict=True))
        for name in methods
        if name != "padded"
    }
    rows = {name: method.args[1] for name, method in methods.items() if name.startswith("bare")}  # type: ignore[attr-defined]
    return {"workload": asdict(workload), "name": workload.name, "tokens": tokens, "rows": rows,
            "tokens_per_second": speeds, "ratios": ratios, "operations": operations,
            "product_rates": products, "shares_of_product": shares}  # fmt: skip


def fastest_rows(bare: BareLoop, samples: Sequence[Sample], fitting: int) -> int:
    """Of a few numbers of rows a micro-batch, fewer than fit, the one whose step is fastest; each is measured once."""
    found = {}
    for rows in (rows for rows in (1, 4, 16) if rows < fitting):
        began = CLOCK()
        bare.step(samples, rows)
        found[rows] = CLOCK() - began
    return min(found, key=lambda rows: found[rows])


def show(result: dict[str, Any]) -> None:
    targets = TARGETS[result["workload"]["kind"]]
    print(f"{result['name']}: {result['workload']['count']} responses, {result['tokens']} tokens a step")
    for method, speeds in result["tokens_per_second"].items():
        ratio, rows = result["ratios"].get(method), result["rows"].get(method)
        line = f"  {method:<10}{statistics.median(speeds):>9.0f} tokens/s"
        line += f"  padded is {ratio:.2f}x" if ratio else ""
        if method in targets:
            line += f" (target {targets[method]:.2f}x{'' if ratio >= targets[method] else ', missed'})"
        print(line + (f", {rows} rows a micro-batch" if rows else ""), flush=True)
    share, product = statistics.median(result["shares_of_product"]), statistics.median(result["product_rates"])
    print(f"  padded computes at {share:.0%} of a matrix product's {product / 1e9:.0f} GFLOP/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, without the larger model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="name of one workload, such as tiny-skewed")
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
            directory = model_directory(workload.model, Path(scratch))
            results.append(measure(workload, directory, 1 if options.quick else options.rounds))
            show(results[-1])
    if options.json:
        options.json.write_text(json.dumps({"results": results, "targets": TARGETS}, indent=2) + "\n")


if __name__ == "__main__":
    main()
