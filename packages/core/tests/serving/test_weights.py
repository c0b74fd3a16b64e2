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


def mid_flight(worker, lab, mode, tokens=30, **sampling):
    """A greedy request, paused somewhere in its middle; gives its future."""
    worker.submit([lab.request("a", lab.prompt(5), **{"temperature": 0.0, "max_new_tokens": 240, **sampling})])
    future = worker.result("a")
    while worker.health()["generated_tokens"] < tokens:
        time.sleep(0.001)
    worker.pause(mode).result(10)
    return future


def publish(worker, staged, version):
    for bucket in staged:
        worker.stage_weights([bucket]).result(30)
    worker.commit_weights(version).result(30)


def test_a_commit_serves_the_new_weights_whole(start, lab, new, models, other_weights, tmp_path):
    worker = start(version=3)
    old_digest = worker.weights_digest().result(10)
    assert old_digest == state_digest(lab.plain_model(models["qwen3"]).state_dict().items())
    staged = buckets(new.state_dict(), tmp_path)
    worker.stage_weights(staged).result(10)
    assert worker.weights_digest().result(10) == old_digest and worker.weight_version().result(10) == 3
    for bucket in staged:  # what was staged is the engine's own
        open(bucket.path, "wb").close()
    worker.commit_weights(4).result(10)
    assert worker.weight_version().result(10) == 4
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
    worker.submit([lab.request(f"{n}", lab.prompt(4, n), max_new_tokens=200, seed=n) for n in range(4)])
    futures = [worker.result(f"{n}") for n in range(4)]
    while worker.health()["generated_tokens"] < 40:
        time.sleep(0.001)
    worker.commit_weights(1).result(10)
    ends = {future.result(60).weight_versions[0].end for future in futures}
    assert len(ends) == 1 and 0 < ends.pop() < 200


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
    assert worker.weights_digest().result(10) == digest and worker.weight_version().result(10) == 0
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
    publish(worker, buckets(both, tmp_path), 2)
    assert worker.weight_version().result(10) == 2


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
