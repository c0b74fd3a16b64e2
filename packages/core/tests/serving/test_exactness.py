"""The engine gives what a plain forward over the whole sequence gives."""

import time

import pytest
import torch
from torch import nn

from reroll.api import EngineError

TOLERANCE = 1e-4


@pytest.mark.parametrize("model", ["qwen3", "llama", "gpt_neox", "gemma"])
def test_logprobs_equal_a_plain_forward_alone_and_batched(model, models, start, lab):
    worker, plain = start(model), lab.plain_model(models[model])
    temperatures = [0.5, 1.0, 1.5]
    requests = [
        lab.request(
            f"{n:02}",
            lab.prompt(1 + 9 * n % 31, n),
            temperature=temperatures[n % 3],
            max_new_tokens=4 + n * 7 % 30,
            seed=n,
        )
        for n in range(12)
    ]
    # Joining in the middle: the second half is submitted while the first is being decoded.
    worker.submit(requests[:6])
    worker.result(requests[0].request_id).result(60)
    worker.submit(requests[6:])
    together = [worker.result(given.request_id).result(60) for given in requests[1:]]
    for given, completion in zip(requests[1:], together, strict=True):
        arguments = (given.input_ids, completion.output_ids)
        assert len(completion.output_ids) == given.sampling.max_new_tokens
        expected = lab.plain_logprobs(plain, *arguments, given.sampling.temperature)
        assert lab.worst(completion.logprobs, expected) < TOLERANCE
        wrong = lab.plain_logprobs(plain, *arguments, given.sampling.temperature * 1.01)
        assert lab.worst(completion.logprobs, wrong) > TOLERANCE
    (alone,) = lab.run(worker, [requests[7]])
    assert alone.output_ids == together[6].output_ids
    assert lab.worst(alone.logprobs, together[6].logprobs) < TOLERANCE


@pytest.mark.parametrize("model", ["qwen3", "llama", "gpt_neox", "gemma"])
def test_a_prompt_that_several_requests_join_with_is_computed_once_and_exactly(model, models, start, lab):
    worker, plain = start(model, prefill_tokens=60), lab.plain_model(models[model])
    # Three prompts of about one length, which make a rectangle with padding and several slots a row, and a longer one.
    lengths = {"a": 9, "b": 9, "c": 11, "d": 20}
    prompts = {name: lab.prompt(length, ord(name)) for name, length in lengths.items()}
    requests = [
        lab.request(f"{name}{n}", prompts[name], max_new_tokens=6 + 2 * n, seed=n)
        for n, name in enumerate(["b", "a", "d", "c", "b", "a", "a", "d", "c", "b"])
    ]
    alone = lab.request("alone", lab.prompt(40, 9), max_new_tokens=60)
    worker.submit([alone])
    while worker.health()["generated_tokens"] < 3:
        time.sleep(0.001)
    together = lab.run(worker, requests)
    assert worker.health()["prefill_tokens"] == 40 + sum(lengths.values())
    for given, done in zip([*requests, alone], [*together, worker.result("alone").result(60)], strict=True):
        assert len(done.output_ids) == given.sampling.max_new_tokens
        assert lab.worst(done.logprobs, lab.plain_logprobs(plain, given.input_ids, done.output_ids, 1.0)) < TOLERANCE
    assert len({tuple(done.output_ids[:6]) for done in together}) == len(together)
    single = start(model)
    assert [lab.run(single, [given])[0].output_ids for given in requests] == [done.output_ids for done in together]


def test_shared_prompts_are_equal_to_the_bit_in_every_run(start, lab):
    requests = [lab.request(f"{n:02}", lab.prompt(5 + n % 4, n % 4), max_new_tokens=20, seed=n) for n in range(32)]
    first, second = lab.run(start(), requests), lab.run(start(), requests)
    assert [(a.output_ids, a.logprobs) for a in first] == [(b.output_ids, b.logprobs) for b in second]
    assert len({a.logprobs[0] for a in first}) > 4


def test_perturbed_weights_show(models, start, lab):
    worker, plain = start(), lab.plain_model(models["qwen3"])
    with torch.no_grad():
        plain.model.layers[1].self_attn.k_proj.weight[0, 0] += 0.5
    (done,) = lab.run(worker, [lab.request("a", lab.prompt(9), max_new_tokens=20)])
    assert lab.worst(done.logprobs, lab.plain_logprobs(plain, lab.prompt(9), done.output_ids, 1.0)) > TOLERANCE


@pytest.mark.parametrize(
    "options", [{"max_running_requests": 3}, {"max_running_requests": 32}, {"prefill_tokens": 20}, {"kv_cache_mb": 1}]
)
def test_limits_change_the_order_of_work_and_no_result(options, start, lab):
    requests = [
        lab.request(f"{n:02}", lab.prompt(2 + 5 * n % 23, n), max_new_tokens=3 + n % 17, seed=100 + n)
        for n in range(40)
    ]
    free, bound = lab.run(start(), requests), lab.run(start(**options), requests)
    assert [done.output_ids for done in free] == [done.output_ids for done in bound]
    assert max(lab.worst(a.logprobs, b.logprobs) for a, b in zip(free, bound, strict=True)) < TOLERANCE


def test_cache_stays_within_its_memory(start, lab):
    worker = start(kv_cache_mb=1)
    tokens = worker.runner.cache_tokens
    assert tokens == 2**20 // (2 * 2 * 2 * 16 * 4)
    seen = []
    fit = worker.runner.cache.fit
    worker.runner.cache.fit = lambda *a: (fit(*a), seen.append(worker.runner.cache.slots * worker.runner.cache.length))
    requests = [lab.request(f"{n:02}", lab.prompt(20, n), max_new_tokens=120 + n, seed=n) for n in range(24)]
    lab.run(worker, requests)
    assert max(seen) <= tokens
    assert max(seen) > tokens // 2


def test_replayed_and_plain_decode_steps_are_equal_to_the_bit(start, lab):
    recorded, direct = start(), start()
    assert recorded.runner.graph is not None and recorded.health()["recorded"]
    assert recorded.runner.model.get_input_embeddings().padding_idx == 298
    direct.runner.graph = None
    requests = [lab.request(f"{n:02}", lab.prompt(3 + n, n), max_new_tokens=30 - n, seed=n) for n in range(8)]
    for one, other in zip(lab.run(recorded, requests), lab.run(direct, requests), strict=True):
        assert (one.output_ids, one.logprobs) == (other.output_ids, other.logprobs)


def test_greedy_takes_the_most_likely_token(models, start, lab):
    plain, ids = lab.plain_model(models["qwen3"]), lab.prompt(6)
    (done,) = lab.run(start(), [lab.request("a", ids, temperature=0.0, max_new_tokens=12)])
    for token in done.output_ids:
        with torch.no_grad():
            assert token == plain(torch.tensor([ids])).logits[0, -1].argmax().item()
        ids = [*ids, token]


def test_a_window_shorter_than_the_context_is_refused(tmp_path, start, lab):
    from transformers import MistralConfig

    config = MistralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        sliding_window=64,
    )
    lab.save_model(config, tmp_path)
    with pytest.raises(EngineError, match="sliding_window is 64, less than the context of 128"):
        start(tmp_path)
    assert len(lab.run(start(tmp_path, max_context_len=64), [lab.request("a", [1] * 30, max_new_tokens=34)])) == 1


@pytest.mark.parametrize("kind", ["gemma2", "mamba", "qwen3_next", "longrope"])
def test_models_that_need_more_than_slots_are_refused(kind, tmp_path, start, lab):
    from transformers import Gemma2Config, LlamaConfig, MambaConfig, Qwen3NextConfig

    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 128}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    config = {
        "gemma2": lambda: Gemma2Config(**small, **heads),
        "mamba": lambda: MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1),
        "qwen3_next": lambda: Qwen3NextConfig(
            **small,
            **heads,
            layer_types=["linear_attention", "full_attention"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        "longrope": lambda: LlamaConfig(
            **small,
            **heads,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 32,
            },
        ),
    }[kind]()
    lab.save_model(config, tmp_path)
    with pytest.raises(EngineError, match="another engine"):
        start(tmp_path)


def test_the_comparison_at_start_finds_a_wrong_forward(models, monkeypatch, start):
    from reroll.serving.local import cache

    start()
    right = cache.attend_rows
    monkeypatch.setattr(
        cache, "attend_rows", lambda q, k, v, mask, scale: right(q, k, v, torch.zeros_like(mask), scale)
    )
    with pytest.raises(EngineError, match="differ from the model's plain forward"):
        start()


def test_a_forward_that_depends_on_values_is_not_recorded(models, lab):
    from reroll.serving.local.runner import ModelRunner

    model = lab.plain_model(models["qwen3"])
    inner = model.model.norm

    class Moody(nn.Module):
        def forward(self, x):
            return inner(x) if x.sum() > -1e9 else x

    model.model.norm = Moody()
    runner = ModelRunner(model, None, 2**24)
    assert runner.graph is None


def test_a_recording_that_is_wrong_is_dropped(models, monkeypatch, start, lab):
    from reroll.serving.local import runner

    monkeypatch.setattr(runner, "record", lambda *_: lambda ids, *inputs: torch.zeros(1, ids.shape[1], lab.vocab))
    worker = start()
    assert worker.runner.graph is None
    (done,) = lab.run(worker, [lab.request("a", lab.prompt(4), max_new_tokens=8)])
    expected = lab.plain_logprobs(lab.plain_model(models["qwen3"]), lab.prompt(4), done.output_ids, 1.0)
    assert lab.worst(done.logprobs, expected) < TOLERANCE


def test_context_longer_than_the_models_is_refused(start):
    with pytest.raises(EngineError, match="max_context_len of serving.engine is 257"):
        start(max_context_len=257)
