"""Small real models, made once a session."""

import json
from pathlib import Path

import pytest

VOCABULARY = 64


def make_tokenizer(directory, vocabulary=VOCABULARY):
    """A tokenizer in which `<0>` … are single tokens and two adjacent tokens may merge, so that text can be
    tokenised in another way than it was sampled."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 .,?+-=\n"
    tokens = {"<eos>": 0, "<pad>": 1, **{symbol: number + 2 for number, symbol in enumerate(alphabet)}}
    merges = [("a", "b"), ("c", "d"), ("1", "2"), ("e", "f")]
    for left, right in merges:
        tokens[left + right] = len(tokens)
    while len(tokens) < vocabulary:
        tokens[f"<{len(tokens)}>"] = len(tokens)
    tokenizer = Tokenizer(models.BPE(tokens, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "pad_token": "<pad>"})
    )
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role[0] }} {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}a {% endif %}"
    )


def make_model(directory, seed=0, **changes):
    """A random two-layer Qwen3 with spread-out logits."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "bos_token_id": None,
        "pad_token_id": 1,
        "initializer_range": 0.2,
        **changes,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**settings))
    model.save_pretrained(directory)
    make_tokenizer(directory, settings["vocab_size"])
    return directory


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Directory of a random model of about 20 thousand parameters, with tokenizer and chat template."""
    return make_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def model_maker():
    """`make_model`, for models that differ from `tiny_model`."""
    return make_model


@pytest.fixture(scope="session")
def recipes():
    """Makes the recipes of the built-in models importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "tools")
        yield
