"""Estimated bytes, against those of real tensors."""

import asyncio
import json
import struct
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from plan_cases import SGLANG, run_of
from training_cases import ranks_of, samples_of

from reroll.models.files import ModelError, resolve_model
from reroll.models.gguf_header import gguf_tensors
from reroll.models.load import load_model
from reroll.models.sizes import ModelSizes, model_sizes, safetensors_header
from reroll.planning.memory import rank_memory, sizes_or_reason
from reroll.planning.report import make_plan


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_and_optimizer_are_those_of_a_trainer(tmp_path, size):
    directory = resolve_model("builtin:tiny-math").directory

    async def work():
        async with ranks_of(tmp_path, directory, size, "trainer.lr=1e-4") as trainer:
            await trainer.train(samples_of(4))
            return (await trainer.memory())[0]

    measured = asyncio.run(work())
    run = run_of(tmp_path, f"trainer.num_ranks={size}", 'trainer.device="cpu"')
    estimate = rank_memory(run, *sizes_or_reason(run)).bytes
    assert (estimate["parameters"], estimate["optimizer"]) == (measured["parameters"], measured["optimizer"])


def test_gradients_and_reference_are_those_of_a_model(tmp_path):
    model = load_model(resolve_model("builtin:tiny-math").directory)
    ids = torch.tensor([[1, 2, 3]])
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters())
    run = run_of(tmp_path, "objective.kl_coef=0.1", 'trainer.device="cpu"')
    estimate = rank_memory(run, *sizes_or_reason(run)).bytes
    assert estimate["gradients"] == gradients
    assert estimate["reference"] == sum(parameter.nbytes for parameter in model.parameters())
    plain = run_of(tmp_path, 'trainer.device="cpu"')
    assert rank_memory(plain, *sizes_or_reason(plain)).bytes["reference"] == 0


def test_the_embedded_engine_holds_its_weights_twice_while_new_ones_are_staged(tmp_path):
    model = load_model(resolve_model("builtin:tiny-math").directory)
    memory = make_plan(run_of(tmp_path, "serving.engine.kv_cache_mb=3"))["memory"]["engine_device"]
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert memory == {
        "weights": weights, "staged_weights": weights, "kv_cache": 3 * 2**20,
        "total": 2 * weights + 3 * 2**20, "because": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "bytes_each"),
    [(['sglang.dtype="bfloat16"'], 2), (['sglang.dtype="float32"', "sglang.tp_size=2"], 2), ([], None)],
)
def test_a_server_holds_its_part_of_the_weights(tmp_path, overrides, bytes_each):
    memory = make_plan(run_of(tmp_path, *SGLANG, *overrides))["memory"]["engine_device"]
    parameters = model_sizes("builtin:tiny-math").parameters
    assert memory["weights"] == (None if bytes_each is None else bytes_each * parameters)
    assert memory["kv_cache"] is None and "SGLang decides" in memory["because"]["kv_cache"]
    assert (bytes_each is None) == ("weights" in memory["because"])


def test_what_a_gpu_holds_for_a_micro_batch_is_bounded(tmp_path):
    run = run_of(
        tmp_path,
        'trainer.device="cuda"',
        "trainer.max_tokens_per_micro_batch=1000",
        "rollout.rollout_max_prompt_len=100",
    )
    shapes = {"lm_head.weight": (2000, 8), "model.layers.0.x": (8, 8), "model.layers.1.x": (8, 8)}
    sizes = ModelSizes(shapes, None, layers=2, hidden=8, vocabulary=2000)
    found = rank_memory(run, sizes, "").bytes
    assert found["logits"] == 4 * (1000 * 2000 + 3 * 1000 * 2000)
    assert found["layer_inputs"] == 2 * 3 * 1000 * 8
    assert found["gathered"] == 2 * (3 * 64 + 2 * 16000)
    padded = run_of(tmp_path, 'trainer.device="cuda"', "trainer.micro_batch_size=2", "trainer.max_sequence_length=700")
    assert rank_memory(padded, sizes, "").bytes["layer_inputs"] == 2 * 3 * 1400 * 8


def test_activations_without_checkpointing_have_no_number(tmp_path):
    run = run_of(tmp_path, 'trainer.device="cuda"', "trainer.activation_checkpointing=false")
    found = rank_memory(run, *sizes_or_reason(run))
    assert found.bytes["layer_inputs"] is None and found.total is None
    assert "activation_checkpointing" in found.because["layer_inputs"]


def folder_of(path, config, **files):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        save_file(tensors, path / f"{name.replace('__', '-')}.safetensors")
    return str(path)


def test_tied_and_computed_tensors_count_once_or_not(tmp_path):
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4), "lm_head.weight": torch.zeros(10, 4),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2), "model.norm.weight": torch.zeros(4),
    }  # fmt: skip
    tied = folder_of(tmp_path / "tied", {"tie_word_embeddings": True}, model=tensors)
    apart = folder_of(tmp_path / "apart", {"tie_word_embeddings": False}, model=tensors)
    assert (model_sizes(tied).parameters, model_sizes(apart).parameters) == (44, 84)


def test_only_files_of_the_index_count(tmp_path):
    path = folder_of(
        tmp_path / "m", {}, one={"a": torch.zeros(3)}, two={"b": torch.zeros(5)}, old={"c": torch.zeros(7)}
    )
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (Path(path) / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_sizes(path).parameters == 8


def test_quantised_and_broken_files_give_a_reason(tmp_path):
    quantised = folder_of(tmp_path / "q", {}, model={"a": torch.zeros(3, dtype=torch.int8)})
    with pytest.raises(ModelError, match="holds a as I8: it is quantised"):
        model_sizes(quantised)
    (tmp_path / "q" / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ModelError, match="no safetensors file that can be read"):
        model_sizes(quantised)


@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda rest: struct.pack("<Q", len(rest)) + rest))
def test_any_bytes_are_a_header_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(data)
    try:
        assert isinstance(safetensors_header(path), dict)
    except ModelError:
        pass


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=5), st.integers(1, 4))
def test_the_largest_shard_is_that_of_a_cut_into_equal_parts(shapes, ranks):
    sizes = ModelSizes({str(number): shape for number, shape in enumerate(shapes)}, None, None, None, None)
    expected = sum(torch.zeros(shape).chunk(ranks)[0].numel() for shape in shapes)
    assert sizes.largest_shard(ranks) == expected


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(values, tensors):
    """A GGUF header as the format describes it."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    for key, kind, packed in values:
        parts += [text(key), struct.pack("<I", kind), packed]
    for name, shape in tensors.items():
        parts += [text(name), struct.pack("<I", len(shape)), *(struct.pack("<Q", n) for n in reversed(shape))]
        parts.append(struct.pack("<IQ", 0, 0))
    return b"".join(parts)


VALUES = [
    ("general.architecture", 8, text("llama")),
    ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
    ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<fff", 1, 2, 3)),
    ("llama.block_count", 4, struct.pack("<I", 2)),
    ("llama.embedding_length", 4, struct.pack("<I", 6)),
]
TENSORS = {
    "token_embd.weight": (9, 6), "rope_freqs.weight": (3,),
    "blk.0.attn_q.weight": (6, 6), "blk.1.attn_q.weight": (6, 6),
}  # fmt: skip


def test_a_gguf_file_tells_its_sizes_without_being_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("REROLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(gguf(VALUES, TENSORS))
    sizes = model_sizes(str(tmp_path / "model.gguf"))
    assert (sizes.parameters, sizes.layers, sizes.hidden, sizes.vocabulary) == (54 + 72, 2, 6, 9)
    assert sizes.units() == (36, 54)
    plan = make_plan(run_of(tmp_path, f'model.path="{tmp_path / "model.gguf"}"'))
    assert plan["servers"]["worker"]["model_dir"].startswith(str(tmp_path / "cache" / "gguf" / "model-"))
    assert plan["memory"]["trainer_rank"]["parameters"] == 4 * 126
    assert not (tmp_path / "cache").exists()


@given(st.integers(0, 400), st.binary(max_size=12))
def test_a_broken_gguf_file_is_an_error(tmp_path_factory, cut, rest):
    path = tmp_path_factory.mktemp("any") / "model.gguf"
    path.write_bytes(gguf(VALUES, TENSORS)[:cut] + rest)
    try:
        assert isinstance(gguf_tensors(path), tuple)
    except ModelError:
        pass
