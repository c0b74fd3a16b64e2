"""Tiny random models and an engine without a process around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, GemmaConfig, GPTNeoXConfig, LlamaConfig, Qwen3Config

from reroll.api import Completion, GenerationRequest, SamplingParams
from reroll.serving.local.worker import EngineWorker

VOCAB = 300
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    # Larger than usual: logits must differ enough between tokens for a mistake to show.
    "initializer_range": 0.2,
}
CONFIGS = {
    "qwen3": Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, eos_token_id=299, pad_token_id=298),
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=2, eos_token_id=299, tie_word_embeddings=True),
    "gpt_neox": GPTNeoXConfig(**SHAPE, eos_token_id=299),
    "gemma": GemmaConfig(**SHAPE, num_key_value_heads=1, head_dim=16, eos_token_id=299),
}


def save_model(config, folder, seed=0):
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Model type → directory."""
    root = tmp_path_factory.mktemp("models")
    return {name: save_model(config, root / name) for name, config in CONFIGS.items()}


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory):
    """A Qwen3 of the same shape with other weights."""
    return save_model(CONFIGS["qwen3"], tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture
def start(models):
    """Starts engines in this process and closes them at the end."""
    started = []

    def make(model="qwen3", **options):
        worker = EngineWorker(str(models.get(model, model)), **{"eos_token_ids": (), **options})
        started.append(worker)
        return worker

    yield make
    for worker in started:
        worker.scheduler.close()


def plain_model(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB - 1, (length,), generator=generator).tolist()


def request(name, ids, **sampling):
    return GenerationRequest(name, ids, SamplingParams(**sampling))


def run(worker, requests, timeout=60) -> list[Completion]:
    """Submits together and waits for all."""
    worker.submit(requests)
    return [worker.result(given.request_id).result(timeout) for given in requests]


def plain_logprobs(model, ids, output, temperature):
    """Log-probability of each output token by one forward over everything, without a cache."""
    with torch.no_grad():
        logits = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1].float()
    chosen = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(output)[:, None])
    return chosen[:, 0].tolist()


def worst(found, expected):
    assert len(found) == len(expected)
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="session")
def lab():
    """The functions above; test modules cannot import each other's."""
    return SimpleNamespace(
        configs=CONFIGS,
        vocab=VOCAB,
        save_model=save_model,
        plain_model=plain_model,
        prompt=prompt,
        request=request,
        run=run,
        plain_logprobs=plain_logprobs,
        worst=worst,
    )
