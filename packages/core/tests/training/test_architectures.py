"""Any dense causal language model of transformers: loaded in shards it is the one that transformers loads."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from reroll.models.digest import state_digest
from reroll.models.load import load_model

sys.path.insert(0, str(Path(__file__).parent))

from loading_cases import loaded_on_ranks
from training_cases import ranks_of, samples_of

LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": 0,
    "pad_token_id": 1,
}  # fmt: skip
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 0}
SCALES = {"logits_scaling": 2.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 2.0}
CASES = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA | {"tie_word_embeddings": True},
    "mistral": LLAMA | {"sliding_window": 4},
    "gemma2": LLAMA | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": LLAMA | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "phi3": LLAMA,
    "gpt2": GPT2,
    "gptj": GPT2 | {"rotary_dim": 4},
    "gpt_neox": LLAMA,
    "gpt_neo": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
                "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128},
    "opt": {"vocab_size": 64, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 128},
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "olmo2": LLAMA,
    "olmo3": LLAMA | {"sliding_window": 4},
    "granite": LLAMA | SCALES,
    "cohere": LLAMA | {"logit_scale": 0.25},
    "cohere2": LLAMA | {"logit_scale": 0.25, "sliding_window": 4},
    "falcon": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "stablelm": LLAMA,
    "smollm3": LLAMA,
    "glm4": LLAMA | {"partial_rotary_factor": 0.5},
}  # fmt: skip
EAGER = {"gemma2", "gpt_neo", "bloom"}
"""Without torch's attention, for a soft cap, a local attention or ALiBi: the model's own serves."""
TIED = {"qwen3", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "opt", "bloom", "cohere", "cohere2", "falcon", "smollm3"}
PADDED = {
    "gemma2": "softcap",
    "stablelm": "more than their own sequence",
    **dict.fromkeys(("bloom", "falcon", "gpt_neo"), "cannot be set"),
}
"""Those that take no packed rows, and what the refusal says."""


def save_random(name, settings, directory):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too, must tell one place from another
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.ndim > 1 else 0.05))
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("architectures")
    return {name: save_random(name, settings, folder / name) for name, settings in CASES.items()}


@pytest.fixture(scope="module")
def on_ranks(directories):
    return dict(zip(CASES, loaded_on_ranks(list(directories.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_shards_are_the_model_that_transformers_loads(name, directories, on_ranks):
    whole, found = load_model(directories[name]), on_ranks[name]
    assert found.get("error") is None
    assert found["digest"] == state_digest(whole.state_dict().items())
    exported = load_model(directories[name] / "exported")
    assert state_digest(exported.state_dict().items()) == found["digest"]
    assert found["tied"] == (whole.get_output_embeddings().weight is whole.get_input_embeddings().weight)
    assert found["tied"] == (name in TIED)
    assert found["attention"] == whole.config._attn_implementation == ("eager" if name in EAGER else "sdpa")
    assert PADDED.get(name, "") in found["packing"]
    assert bool(found["packing"]) == (name in PADDED)
    assert found["noted"] == 0, "passes without a backward one would pile up"


MIXTURES = {"qwen3_moe": LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            "mixtral": LLAMA | {"num_local_experts": 4}}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_one_rank_trains_a_mixture_of_experts(name, tmp_path):
    folder = save_random(name, MIXTURES[name], tmp_path / "model")

    async def run():
        async with ranks_of(tmp_path, folder, 1, "trainer.lr=1e-3") as trainer:
            (metrics,) = await trainer.train(samples_of())
            await trainer.export_hf(tmp_path / "hf")
            return metrics, await trainer.weights_digest()

    metrics, digest = asyncio.run(run())
    assert metrics["grad_norm"] > 0
    assert state_digest(load_model(folder).state_dict().items()) != digest
    assert state_digest(load_model(tmp_path / "hf").state_dict().items()) == digest


def test_what_ranks_cannot_read_is_named(tiny_model, tmp_path):
    """A mixture of experts, whose files hold every expert by itself; and files that lack something."""
    folders = [save_random(name, settings, tmp_path / name) for name, settings in MIXTURES.items()]
    missing, reshaped, unsafe = (copied(tiny_model, tmp_path / name) for name in ("missing", "reshaped", "unsafe"))
    change(missing, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    change(reshaped, lambda tensors: tensors.update({"model.norm.weight": torch.ones(5)}))
    (unsafe / "model.safetensors").rename(unsafe / "pytorch_model.bin")
    found = [each["error"] for each in loaded_on_ranks([*folders, missing, reshaped, unsafe])]
    for error in found[:2]:
        assert "experts.gate_up_proj is put together from several stored tensors" in error
        assert "trainer.num_ranks = 1" in error
    assert found[2].endswith("model.layers.1.mlp.up_proj.weight is missing")
    assert "model.norm.weight has shape (5,) instead of (32,)" in found[3]
    assert "no *.safetensors" in found[4]


def test_files_of_the_model_without_its_head_are_read(tmp_path):
    """Such files lack the prefix of all names; a tied head is none of theirs."""
    folder = save_random("qwen3", CASES["qwen3"], tmp_path / "whole")
    expected = state_digest(load_model(folder).state_dict().items())
    path = folder / "model.safetensors"
    save_file({name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    (found,) = loaded_on_ranks([folder])
    assert found["digest"] == expected == state_digest(load_model(folder).state_dict().items())


def test_a_soft_cap_acts(directories):
    """Gemma 2 caps its attention scores, which torch's attention cannot: whoever loads it must not lose that."""
    model = load_model(directories["gemma2"])
    tokens = torch.arange(2, 22)[None]
    capped = model(tokens).logits
    model.config.attn_logit_softcapping = None
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = 1e-2
    assert not torch.allclose(capped, model(tokens).logits, atol=1e-3)


def copied(source, target):
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def change(folder, work):
    tensors = load_file(folder / "model.safetensors")
    work(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
