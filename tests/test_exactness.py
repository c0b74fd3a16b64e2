"""Trainer and engine agree on log-probabilities; what was sampled is what is trained on."""

import asyncio
import dataclasses
import json
import shutil

import pytest
from driving import run_and_watch, session_of

from reroll.models.files import resolve_model
from reroll.traces.saved import read_rollouts, step_directory


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.5, marks=pytest.mark.slow), 1.5, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_trainer_and_engine_give_equal_log_probabilities(run_file, tmp_path, temperature):
    async def body():
        overrides = [f"rollout.temperature={temperature}", "rollout.group_filters=[]"]
        async with session_of(run_file(), tmp_path / "out", *overrides) as session:
            async with session.producing():
                collection = await session.collect()
            samples = await session.samples(collection)
            together = await session.trainer.logprobs(samples)
            alone = [(await session.trainer.logprobs([sample]))[0] for sample in samples]
            padded = await session.trainer.logprobs([longer(sample) for sample in samples] + samples)
            changed = await session.trainer.logprobs([with_another_token(sample) for sample in samples])
            return samples, together, alone, padded[len(samples) :], changed

    samples, together, alone, padded, changed = asyncio.run(body())
    assert len(samples) == 16
    assert len({len(sample.token_ids) for sample in samples}) > 1, "rows are padded"
    for sample, wrong, *ours in zip(samples, changed, together, alone, padded, strict=True):
        engine = [p for p, active in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if active]
        for logprobs in ours:
            assert logprobs == pytest.approx(engine, abs=1e-4)
        assert wrong != pytest.approx(engine, abs=1e-4), "the control: another token has another probability"


def longer(sample):
    """The same sample with thirty more tokens, so that rows beside it need more padding."""
    return dataclasses.replace(
        sample,
        token_ids=[*sample.token_ids, *[50] * 30],
        loss_mask=[*sample.loss_mask, *[True] * 30],
        rollout_logprobs=[*sample.rollout_logprobs, *[0.0] * 30],
    )


def with_another_token(sample):
    first = sample.loss_mask.index(True)
    ids = [*sample.token_ids[:first], (sample.token_ids[first] + 1) % 300, *sample.token_ids[first + 1 :]]
    return dataclasses.replace(sample, token_ids=ids)


def test_the_gap_between_trainer_and_engine_is_reported(run_file, tmp_path):
    run_and_watch(run_file(), tmp_path / "out", "rollout.num_rollout=2")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    gaps = [line["train/train_rollout_logprob_abs_diff"] for line in lines if "train/loss" in line]
    assert gaps
    assert max(gaps) < 1e-4


def test_a_second_eos_ends_a_response_like_the_first(run_file, tmp_path):
    """With two EOS ids a response that ends on the second is not truncated, and nothing after it carries loss."""
    source = resolve_model("builtin:tiny-math")
    model = tmp_path / "two-eos"
    shutil.copytree(source.directory, model)
    from tokenizers import Tokenizer

    # every digit run of an answer is followed by this brace, so the model "ends" there
    second = Tokenizer.from_file(str(source.tokenizer)).token_to_id("}")
    generation = json.loads((model / "generation_config.json").read_text())
    generation["eos_token_id"] = [source.eos_token_ids[0], second]
    (model / "generation_config.json").write_text(json.dumps(generation))
    overrides = [f'model.path="{model}"', "rollout.num_rollout=1", "rollout.group_filters=[]"]
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides)
    records = list(read_rollouts(step_directory(tmp_path / "out", 0)))
    ended = [node for record in records for node in record["nodes"] if node["sampled"] and second in node["token_ids"]]
    assert len(ended) > len(records) // 2
    for node in ended:
        assert node["token_ids"].index(second) == len(node["token_ids"]) - 1
        assert node["finish_reason"] == "stop"
        assert len(node["mask"]) == len(node["token_ids"]) == len(node["logprobs"])
    assert all(second not in ids[:-1] for ids in seen.token_ids[0])


def test_sampled_ids_are_trained_as_sampled(run_file, tmp_path):
    """At a high temperature some responses have text that would be tokenised otherwise."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve_model("builtin:tiny-math").tokenizer))
    overrides = ["rollout.num_rollout=1", "rollout.group_filters=[]", "rollout.temperature=3.0"]
    seen = run_and_watch(run_file(), tmp_path / "out", *overrides)
    records = list(read_rollouts(step_directory(tmp_path / "out", 0)))
    sampled = [node for record in records for node in record["nodes"] if node["sampled"]]
    odd = [
        node["token_ids"]
        for node in sampled
        if tokenizer.encode(tokenizer.decode(node["token_ids"], skip_special_tokens=False)).ids != node["token_ids"]
    ]
    assert odd, "the case must occur, or this test shows nothing"
    trained = {tuple(ids) for ids in seen.token_ids[0]}
    for record in records:
        assert tuple(token for node in record["nodes"] for token in node["token_ids"]) in trained
