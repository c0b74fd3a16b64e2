"""New weights: staged beside the served ones, swapped between two steps."""

import time

import pytest
import torch
from safetensors.torch import save_file

from reroll.api import EngineError, VersionSpan, WeightBucket
from reroll.models.digest import state_digest


def buckets(state, folder, parts=2):
    """Writes tensors into files as a transport would."""
    folder.mkdir(exist_ok=True)
    names, found = sorted(state), []
    for part in range(parts):
        chosen = {name: state[name].clone().contiguous() for name in names[part::parts]}
        path = folder / f"{part}.safetensors"
        save_file(chosen, path)
        found.append(WeightBucket(str(path), tuple(chosen), path.stat().st_size))
    return found


@pytest.fixture
def new(lab, other_weights):
    return lab.plain_model(other_weights)


def publish(worker, staged, version, recompute=False):
    for bucket in staged:
        worker.stage_weights([bucket]).result(30)
    return worker.commit_weights(version, recompute).result(30)


def generated(worker, tokens):
    """Waits until the engine has generated `tokens` more."""
    goal = worker.health()["generated_tokens"] + tokens
    while worker.health()["generated_tokens"] < goal:
        time.sleep(0.001)


def submit(worker, requests):
    worker.submit(requests)
    return [worker.result(given.request_id) for given in requests]


def mid_flight(worker, lab, mode, tokens=30, **sampling):
    """A greedy request, paused somewhere in its middle; gives its future."""
    sampling = {"temperature": 0.0, "max_new_tokens": 240, **sampling}
    (future,) = submit(worker, [lab.request("a", lab.prompt(5), **sampling)])
    generated(worker, tokens)
    worker.pause(mode).result(10)
    return future


def test_a_commit_serves_the_new_weights_whole(start, lab, new, models, other_weights, tmp_path):
    worker = start(version=3)
    lab.run(worker, [lab.request("a", lab.prompt(5), max_new_tokens=20)])  # the prompt is computed again later
    old_digest = worker.weights_digest().result(10)
    assert old_digest == state_digest(lab.plain_model(models["qwen3"]).state_dict().items())
    staged = buckets(new.state_dict(), tmp_path)
    worker.stage_weights(staged).result(10)
    assert worker.weights_digest().result(10) == old_digest and worker.weight_version() == 3
    for bucket in staged:  # what was staged is the engine's own
        open(bucket.path, "wb").close()
    worker.commit_weights(4).result(10)
    assert worker.weight_version() == 4
    assert worker.weights_digest().result(10) == state_digest(new.state_dict().items()) != old_digest
    (done,) = lab.run(worker, [lab.request("a", lab.prompt(5), max_new_tokens=20)])
    assert lab.worst(done.logprobs, lab.plain_logprobs(new, lab.prompt(5), done.output_ids, 1.0)) < 1e-4
    assert done.weight_versions == [VersionSpan(4, 0, 20)]
    (cold,) = lab.run(start(other_weights), [lab.request("a", lab.prompt(5), max_new_tokens=20)])
    assert (done.output_ids, done.logprobs) == (cold.output_ids, cold.logprobs)


def test_after_retract_the_continuation_is_a_cold_engines(start, lab, new, other_weights, tmp_path):
    worker = start()
    future = mid_flight(worker, lab, "retract")
    publish(worker, buckets(new.state_dict(), tmp_path), 1)
    worker.resume().result(10)
    done = future.result(60)
    first, second = done.weight_versions
    assert (first.version, first.start, second.version, second.end) == (0, 0, 1, 240)
    cut = first.end
    assert cut == second.start >= 30
    prefix = lab.prompt(5) + done.output_ids[:cut]
    (cold,) = lab.run(
        start(other_weights), [lab.request("b", prompt := prefix, temperature=0.0, max_new_tokens=240 - cut)]
    )
    assert done.output_ids[cut:] == cold.output_ids and len(prompt) == 5 + cut
    assert lab.worst(done.logprobs[cut:], cold.logprobs) < 1e-4
    (unchanged,) = lab.run(start(), [lab.request("b", prefix, temperature=0.0, max_new_tokens=240 - cut)])
    assert unchanged.output_ids != cold.output_ids


def test_in_place_keeps_the_cache_and_marks_the_version(start, lab, new, models, tmp_path):
    worker = start()
    future = mid_flight(worker, lab, "in_place", temperature=1.0)
    publish(worker, buckets(new.state_dict(), tmp_path), 1)
    publish(worker, buckets(new.state_dict(), tmp_path), 2)
    worker.resume().result(10)
    done = future.result(60)
    first, second = done.weight_versions
    cut = first.end
    assert (first, second) == (VersionSpan(0, 0, cut), VersionSpan(2, cut, 240))
    old = lab.plain_logprobs(lab.plain_model(models["qwen3"]), lab.prompt(5), done.output_ids, 1.0)
    assert lab.worst(done.logprobs[:cut], old[:cut]) < 1e-4
    assert abs(done.logprobs[cut] - old[cut]) > 1e-4
    # The cache is the old weights': a forward of the new ones alone gives something else.
    fresh = lab.plain_logprobs(new, lab.prompt(5), done.output_ids, 1.0)
    assert abs(done.logprobs[cut] - fresh[cut]) > 1e-4


def test_a_commit_without_a_pause_happens_between_two_steps(start, lab, new, tmp_path):
    worker = start()
    staged = buckets(new.state_dict(), tmp_path)
    worker.stage_weights(staged).result(10)
    futures = submit(worker, [lab.request(f"{n}", lab.prompt(4, n), max_new_tokens=200, seed=n) for n in range(4)])
    generated(worker, 40)
    cost = worker.commit_weights(1).result(10)
    assert cost.pause_seconds > 0 == cost.recompute_seconds == worker.health()["recompute_seconds"]
    ends = {future.result(60).weight_versions[0].end for future in futures}
    assert len(ends) == 1 and 0 < ends.pop() < 200


def mixed(lab, name, seed):
    """Prompts of different lengths, two of them with siblings; one in two is greedy."""
    prompts = [lab.prompt(length, seed + length) for length in (3, 7, 7, 7, 12, 12, 20)]
    return [
        lab.request(f"{name}{n}", ids, temperature=float(n % 2), max_new_tokens=200, seed=n)
        for n, ids in enumerate(prompts)
    ]


def check_continuation(done, given, plain, cold, lab):
    """What `done` has of its last version is what a cold engine with these weights makes of the text before."""
    cut, ids, temperature = done.weight_versions[-1].start, given.input_ids, given.sampling.temperature
    expected = lab.plain_logprobs(plain, ids, done.output_ids, temperature or 1.0)
    assert lab.worst(done.logprobs[cut:], expected[cut:]) < 1e-4
    if temperature == 0:
        again = lab.request("again", ids + done.output_ids[:cut], temperature=0.0, max_new_tokens=200 - cut)
        assert lab.run(cold, [again])[0].output_ids == done.output_ids[cut:]


@pytest.mark.parametrize("prefill_tokens", [8192, 60])
def test_after_recompute_every_continuation_is_a_cold_engines(
    prefill_tokens, start, lab, new, models, other_weights, tmp_path
):
    worker, cold = start(prefill_tokens=prefill_tokens), start(other_weights)
    for bucket in buckets(new.state_dict(), tmp_path):
        worker.stage_weights([bucket]).result(30)
    before, after = mixed(lab, "b", 0), mixed(lab, "a", 0)
    futures = submit(worker, before[:4])
    generated(worker, 20)
    futures += submit(worker, before[4:])
    generated(worker, 50)
    cost = worker.commit_weights(1, recompute=True).result(30)
    assert worker.health()["running"] == len(before), "they are back before anything else happens"
    futures += submit(worker, after)
    assert cost.pause_seconds > 0 and cost.recompute_seconds >= worker.health()["recompute_seconds"] > 0
    old = lab.plain_model(models["qwen3"])
    for future, given in zip(futures, before + after, strict=True):
        done = future.result(60)
        if given in after:
            assert done.weight_versions == [VersionSpan(1, 0, 200)]
        else:
            first, second = done.weight_versions
            cut = first.end
            assert (first, second) == (VersionSpan(0, 0, cut), VersionSpan(1, cut, 200)) and cut > 0
            expected = lab.plain_logprobs(old, given.input_ids, done.output_ids, given.sampling.temperature or 1.0)
            assert lab.worst(done.logprobs[:cut], expected[:cut]) < 1e-4
            assert abs(done.logprobs[cut] - expected[cut]) > 1e-4
        check_continuation(done, given, new, cold, lab)


def test_several_recomputes_in_a_row(start, lab, new, models, tmp_path):
    worker, weights = start(), [lab.plain_model(models["qwen3"]), new]
    staged = [buckets(model.state_dict(), tmp_path / str(n)) for n, model in enumerate(weights)]
    requests = mixed(lab, "r", 50)
    futures = submit(worker, requests)
    for version in range(1, 4):
        generated(worker, 60)
        publish(worker, staged[version % 2], version, recompute=True)
    publish(worker, staged[0], 4, recompute=True)
    for future, given in zip(futures, requests, strict=True):
        done = future.result(60)
        assert [span.version for span in done.weight_versions] == [0, 1, 2, 3, 4]
        assert [span.start for span in done.weight_versions[1:]] == [span.end for span in done.weight_versions[:-1]]
        for span in done.weight_versions:
            plain, temperature = weights[span.version % 2], given.sampling.temperature or 1.0
            expected = lab.plain_logprobs(plain, given.input_ids, done.output_ids, temperature)
            assert lab.worst(done.logprobs[span.start : span.end], expected[span.start : span.end]) < 1e-4


def test_a_paused_engine_recomputes_on_resume(start, lab, new, other_weights, tmp_path):
    worker, given = start(), lab.request("a", lab.prompt(5), temperature=0.0, max_new_tokens=200)
    future = mid_flight(worker, lab, "in_place", max_new_tokens=200)
    cost = publish(worker, buckets(new.state_dict(), tmp_path), 1, recompute=True)
    assert cost.recompute_seconds == 0 == worker.health()["recompute_seconds"]
    assert (worker.health()["running"], worker.health()["queued"]) == (0, 1) and not future.done()
    joined, step = [], worker.runner.step
    worker.runner.step = lambda *a: (joined.append(sum(prompt.requests for prompt in a[2])), step(*a))[1]
    (late,) = submit(worker, [lab.request("late", lab.prompt(9), max_new_tokens=3)])
    worker.resume().result(10)
    done = future.result(60)
    assert joined[:2] == [1, 1], "a new request joins after those that come back"
    assert late.result(10).weight_versions == [VersionSpan(1, 0, 3)]
    assert [span.version for span in done.weight_versions] == [0, 1]
    assert worker.health()["recompute_seconds"] > 0
    check_continuation(done, given, new, start(other_weights), lab)


def test_recompute_brings_back_the_running_and_lets_the_queue_wait(start, lab, new, other_weights, tmp_path):
    # So many rows that few free ones would not let new requests join, and steps too small for all of them.
    worker = start(max_running_requests=64, prefill_tokens=300)
    requests = [lab.request(f"{n}", lab.prompt(3 + n % 5, n), max_new_tokens=150, seed=n) for n in range(70)]
    futures = submit(worker, requests)
    generated(worker, 64 * 20)
    publish(worker, buckets(new.state_dict(), tmp_path), 1, recompute=True)
    assert (worker.health()["running"], worker.health()["queued"]) == (64, 6)
    done = [future.result(60) for future in futures]
    assert all([span.version for span in one.weight_versions] == [0, 1] for one in done[:64])
    assert all([span.version for span in one.weight_versions] == [1] for one in done[64:])
    for one, other in zip(done[64:], lab.run(start(other_weights), requests[64:]), strict=True):
        assert one.output_ids == other.output_ids


def test_a_failed_commit_with_recompute_changes_nothing(start, lab):
    requests = mixed(lab, "r", 80)
    expected = lab.run(start(), requests)
    worker = start()
    futures = submit(worker, requests)
    generated(worker, 60)
    with pytest.raises(EngineError, match="weights are not complete"):
        worker.commit_weights(1, recompute=True).result(10)
    for future, wanted in zip(futures, expected, strict=True):
        done = future.result(60)
        assert (done.output_ids, done.logprobs) == (wanted.output_ids, wanted.logprobs)
        assert done.weight_versions == [VersionSpan(0, 0, 200)]
    health = worker.health()
    assert health["weight_version"] == 0 == health["recompute_seconds"]
    assert health["prefill_tokens"] == 3 + 7 + 12 + 20


def test_recomputing_with_broken_weights_stops_the_engine(start, lab, new, tmp_path):
    worker, state = start(), dict(new.state_dict())
    state["model.norm.weight"] = torch.full_like(state["model.norm.weight"], torch.nan)
    (future,) = submit(worker, [lab.request("a", lab.prompt(5), max_new_tokens=200)])
    generated(worker, 5)
    with pytest.raises(EngineError, match="the engine stopped: .* not finite"):
        publish(worker, buckets(state, tmp_path), 1, recompute=True)
    with pytest.raises(EngineError, match="the engine stopped: .* not finite"):
        future.result(10)


@pytest.mark.parametrize("fault", ["missing", "name", "shape", "dtype", "file", "content"])
def test_faulty_weights_leave_the_old_ones_whole(fault, start, lab, new, tmp_path):
    worker, state = start(), dict(new.state_dict())
    digest = worker.weights_digest().result(10)
    message = {
        "missing": "model.norm.weight of 25 tensors were not staged",
        "name": "'model.extra', which the served model does not have",
        "shape": r"'model.norm.weight' as float32 \[3\], but the served model has float32 \[64\]",
        "dtype": "'model.norm.weight' as float16",
        "file": "cannot be read",
        "content": "lacks model.norm.weight",
    }[fault]
    if fault == "missing":
        del state["model.norm.weight"]
    elif fault == "name":
        state["model.extra"] = torch.zeros(2)
    elif fault == "shape":
        state["model.norm.weight"] = torch.zeros(3)
    elif fault == "dtype":
        state["model.norm.weight"] = state["model.norm.weight"].half()
    staged = buckets(state, tmp_path, parts=1)
    if fault == "file":
        staged = [WeightBucket(str(tmp_path / "none"), staged[0].names, 1)]
    elif fault == "content":
        del state["model.norm.weight"]
        buckets(state, tmp_path, parts=1)
    with pytest.raises(EngineError, match=message):
        publish(worker, staged, 1)
    assert worker.weights_digest().result(10) == digest and worker.weight_version() == 0
    with pytest.raises(EngineError, match="weights are not complete"):
        worker.commit_weights(1).result(10)
    publish(worker, buckets(new.state_dict(), tmp_path), 1)
    assert worker.weights_digest().result(10) != digest


def test_tied_tensors_need_one_of_their_names_and_must_agree(start, lab, models, tmp_path):
    worker, state = start("llama"), dict(lab.plain_model(models["llama"]).state_dict())
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    without = {name: tensor * 2 for name, tensor in state.items() if name != "lm_head.weight"}
    publish(worker, buckets(without, tmp_path), 1)
    both = {**without, "lm_head.weight": without["model.embed_tokens.weight"]}
    assert worker.weights_digest().result(10) == state_digest(both.items())
    with pytest.raises(EngineError, match="one tensor in the model"):
        publish(worker, buckets({**both, "lm_head.weight": state["lm_head.weight"]}, tmp_path), 2)
    assert worker.weights_digest().result(10) == state_digest(both.items())
    # Bucket by bucket: unequal for a while, equal in the end.
    worker.stage_weights(buckets(state, tmp_path, parts=1)).result(10)
    publish(worker, buckets(both, tmp_path, parts=len(both)), 2)
    assert worker.weight_version() == 2
    assert worker.weights_digest().result(10) == state_digest(both.items())


def test_the_digest_sees_names_types_shapes_and_bytes():
    base = {"a": torch.arange(4.0), "b": torch.tensor(1.5)}
    digest = state_digest(base.items())
    assert digest == state_digest(reversed(base.items()))
    changed = [
        {"a": torch.arange(4.0), "c": torch.tensor(1.5)},
        {"a": torch.arange(4.0).view(2, 2), "b": torch.tensor(1.5)},
        {"a": torch.arange(4.0).view(torch.int32), "b": torch.tensor(1.5)},
        {"a": torch.tensor([0.0, 1, 2, 3.0000002]), "b": torch.tensor(1.5)},
    ]
    assert digest not in {state_digest(other.items()) for other in changed}
