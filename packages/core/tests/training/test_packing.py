"""Packed rows give what padded ones give, and neither depends on the cut."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from reroll.api import Group, Node, RenderedPrompt, Task, Trace, TrainingError
from reroll.models.load import load_model
from reroll.traces.samples import collection_samples
from reroll.training import logprobs
from reroll.training.advantages import Grpo
from reroll.training.batching import micro_batch
from reroll.training.cut import MicroBatchRule, cut_collection
from reroll.training.objective import Recipe
from reroll.training.policy import Policy
from reroll.training.ranks import Ranks
from reroll.training.scoring import ScoringRule
from reroll.training.step import PolicyTrainer, StepSettings

sys.path.insert(0, str(Path(__file__).parent))

from training_cases import samples_of

TASK = Task([{"role": "user", "content": "q"}], {}, "set", 0, "p0")
SETTINGS = {
    "lr": 1e-3, "min_lr": 0.0, "lr_decay_style": "constant", "warmup_steps": 0, "decay_steps": 10, "weight_decay": 0.0,
    "adam_beta1": 0.9, "adam_beta2": 0.98, "adam_eps": 1e-8, "clip_grad": 1.0, "use_rollout_logprobs": False,
}  # fmt: skip
RECIPES = {"per response": {}, "per token": {"calculate_per_token_loss": True}, "constant": {"constant_length": 24}}


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


def trainer_of(model, packed, **recipe):
    ranks, scoring = Ranks(0, 1, "cpu", "float32"), ScoringRule(False, interval=0, tolerance=1e-3)
    settings = StepSettings(**SETTINGS, packed=packed)
    return PolicyTrainer(Policy(copy.deepcopy(model), 1.0), None, ranks, Recipe(**recipe), None, scoring, settings)


def gradient(model, samples, rows, packed, **recipe):
    """Of all samples as one step; None if there is no step."""
    trainer = trainer_of(model, packed, **recipe)
    steps = cut_collection(samples, 100, 1, MicroBatchRule(None, rows, packed))[0]
    for step in steps:
        assert len(step.micro_batches) == -(-len(step.samples) // rows)
        trainer.accumulate_gradients(trainer.micro_batches(step), step.totals, None, anchored=False)
    found = [parameter.grad for parameter in trainer.policy.parameters() if parameter.grad is not None]
    return torch.cat([grad.flatten() for grad in found]) if steps else None


def relative(one, other):
    return ((one - other).norm() / one.norm()).item()


def masked_samples(truncated):
    """Of two groups of four responses, of which those in `truncated` were cut off and are masked."""
    traces = [trace_of(sample, number in truncated) for number, sample in enumerate(samples_of(8))]
    rewards = [1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 0.25]
    groups = [
        Group("g", start, 0, 0, TASK, RenderedPrompt("q", (), "", ""), traces[start : start + 4], [0] * 4, {},
              list(rewards[start : start + 4]))
        for start in (0, 4)
    ]  # fmt: skip
    return collection_samples(groups, [0, 4], Grpo(), mask_truncated=True)


def trace_of(sample, truncated):
    prompt = sample.loss_mask.index(True)
    reason = "length" if truncated else "stop"
    nodes = [
        Node(None, TASK.prompt[0], False, sample.token_ids[:prompt], [False] * prompt),
        Node(0, {"role": "assistant", "content": "a"}, True, sample.token_ids[prompt:], sample.loss_mask[prompt:],
             sample.rollout_logprobs[prompt:], [], reason),
    ]  # fmt: skip
    return Trace("t", TASK, nodes, is_completed=True)


@pytest.mark.parametrize("truncated", [(), (0, 3, 5)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_depend_neither_on_the_cut_nor_on_packing(model, recipe, truncated):
    samples = masked_samples(truncated)
    assert len(samples) == 8 - len(truncated)
    whole = gradient(model, samples, 8, False, **RECIPES[recipe])
    for rows in (8, 2, 1):
        for packed in (False, True):
            assert relative(whole, gradient(model, samples, rows, packed, **RECIPES[recipe])) < 1e-5
    unmasked = gradient(model, masked_samples(() if truncated else (1,)), 8, False, **RECIPES[recipe])
    assert relative(whole, unmasked) > 1e-3


@pytest.mark.parametrize("packed", [False, True])
def test_without_a_response_to_train_on_there_is_no_step(model, packed):
    samples = masked_samples(range(8))
    assert samples == []
    assert gradient(model, samples, 8, packed) is None
    trainer = trainer_of(model, packed)
    assert trainer.train_collection(cut_collection(samples, 8, 1, MicroBatchRule(64, packed=packed))[0]) == []
    assert trainer.version == 0
    assert not trainer.optimizer.state


@pytest.mark.parametrize(("packed", "rows"), [(False, 8), (False, 3), (True, 8)])
def test_the_padding_fraction_is_that_of_the_passes(tiny_model, packed, rows):
    samples = samples_of(8)
    trainer = trainer_of(load_model(tiny_model), packed)
    (step,) = trainer.train_collection(cut_collection(samples, 8, 1, MicroBatchRule(None, rows, packed))[0])
    lengths = [len(sample.token_ids) for sample in samples]
    passes = [lengths[start : start + rows] for start in range(0, 8, rows)]
    computed = sum(lengths) if packed else sum(max(part) * len(part) for part in passes)
    assert step["forward_tokens"] == sum(lengths)
    assert step["padding_fraction"] == pytest.approx(1 - sum(lengths) / computed)
    assert (step["padding_fraction"] == 0) == packed


WINDOWS = {
    "mistral": {"sliding_window": 6},
    "qwen2": {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_sliding_window_is_the_same_in_packed_rows(name):
    """Sequences are longer than the window; without it the log-probabilities differ."""
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 1,
             "initializer_range": 0.2}  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **shape, **WINDOWS[name])).eval()
    samples = samples_of(6)
    assert min(len(sample.token_ids) for sample in samples) < 6 < max(len(sample.token_ids) for sample in samples)
    policy = Policy(copy.deepcopy(model), 1.0)
    padded, packed = (policy.score(micro_batch(samples, packed=flag)) for flag in (False, True))
    assert torch.allclose(padded, packed, atol=1e-5)
    assert relative(gradient(model, samples, 6, False), gradient(model, samples, 6, True)) < 1e-5
    wide = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(name, **shape, **WINDOWS[name] | {"sliding_window": 64})
    ).eval()
    wide.load_state_dict(model.state_dict())
    assert not torch.allclose(Policy(wide, 1.0).score(micro_batch(samples, packed=True)), packed, atol=1e-3)


def test_a_model_that_looks_beyond_its_sequence_is_refused(model, monkeypatch):
    """Here because nothing tells its attention where sequences end."""
    monkeypatch.setattr(logprobs, "packed_arguments", lambda lengths, device: {})
    with pytest.raises(TrainingError, match=r"more than their own sequence.*trainer\.packing = false"):
        Policy(copy.deepcopy(model), 1.0).check_packing(torch.device("cpu"), 1e-4)
