"""What runs in the processes whose memory is measured."""

import ctypes
import gc
import random
from pathlib import Path


def measured_worker():
    """Exports have shards of 16 MB instead of gigabytes; `trim` gives back what the process has freed, which a later
    operation could otherwise use unseen; `load_growth` tells by how much the process grew at most in loading."""
    from reroll.models import sharded
    from reroll.training import export, worker

    export.export_hf.__defaults__ = (16 * 1024**2,)
    worker.TrainerWorker.trim = lambda self: ctypes.CDLL(None).malloc_trim(0)
    load, fill, grown = worker.load_policy, sharded.load_shards, []

    def load_policy(*arguments, **keywords):
        before = reset_peak()
        policy = load(*arguments, **keywords)
        grown.append(_status("VmHWM") - before)
        return policy

    def load_shards(*arguments):
        """Without the pages of mapped files, which belong to the system's cache and are gone when this returns."""
        before = _status("RssAnon")
        fill(*arguments)
        grown.append(_status("RssAnon") - before)
        reset_peak()

    worker.load_policy, sharded.load_shards = load_policy, load_shards
    worker.TrainerWorker.load_growth = lambda self: max(grown)


def reset_peak():
    """What the process holds now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def growth_of_a_step(vocabulary, answer):
    """Bytes by which the process grows at most in an optimizer step, with gradients and moments made before."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from reroll.training.cut import MicroBatchRule, cut_collection
    from reroll.training.objective import Recipe
    from reroll.training.policy import Policy
    from reroll.training.ranks import Ranks
    from reroll.training.scoring import ScoringRule
    from reroll.training.step import PolicyTrainer, StepSettings

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    settings = StepSettings(
        lr=1e-4, min_lr=0.0, lr_decay_style="constant", warmup_steps=0, decay_steps=10, weight_decay=0.0,
        adam_beta1=0.9, adam_beta2=0.98, adam_eps=1e-8, clip_grad=1.0, use_rollout_logprobs=False,
    )  # fmt: skip
    ranks, scoring = Ranks(0, 1, "cpu", "float32"), ScoringRule(False, interval=50, tolerance=1e-3)
    trainer = PolicyTrainer(Policy(model, 1.0), None, ranks, Recipe(), None, scoring, settings)

    def train(length):
        rule = MicroBatchRule(max_tokens=8 * length)
        trainer.train_collection(cut_collection(_samples(vocabulary, length), 8, 1, rule)[0])

    train(32)  # moments are there after it, and the gradients stay until the next step
    before = reset_peak()
    train(1024)
    answer.send(_status("VmHWM") - before)


def _samples(vocabulary, length):
    from reroll.api import Sample

    draw = random.Random(0)
    return [
        Sample(
            token_ids=[draw.randrange(vocabulary) for _ in range(length)],
            loss_mask=[place > 0 for place in range(length)],
            rollout_logprobs=[-5.0] * length,
            advantage=draw.uniform(-1, 1),
            reward=0.0,
            group_index=0,
            weight_version=0,
            slot=slot,
        )
        for slot in range(8)
    ]


def _status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
