"""Requests on their way: stops, refusals, aborts, pauses, failure."""

import json
import math
import time

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers import models as tokenizer_models

from reroll.api import EngineError, VersionSpan
from reroll.serving.local.requests import spans


def wait_for(condition, timeout=30):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def tokens_of(worker):
    return worker.health()["generated_tokens"]


def test_equal_submissions_are_equal_to_the_bit(start, lab):
    requests = [
        lab.request(f"{n:02}", lab.prompt(2 + n % 5, n), temperature=0.8, top_p=0.9, max_new_tokens=5 + n % 11, seed=n)
        for n in range(20)
    ]
    first, second = lab.run(start(), requests), lab.run(start(), requests)
    assert [(a.output_ids, a.logprobs) for a in first] == [(b.output_ids, b.logprobs) for b in second]
    other = lab.run(start(), [lab.request("a", lab.prompt(2, 0), temperature=0.8, max_new_tokens=5, seed=99)])
    assert other[0].output_ids != first[0].output_ids


def test_siblings_differ_by_their_seeds_alone(start, lab):
    ids = lab.prompt(5)
    requests = [lab.request(f"{n}", ids, max_new_tokens=12, seed=seed) for n, seed in enumerate((1, 2, 1))]
    first, second, third = lab.run(start(), requests)
    assert first.output_ids == third.output_ids != second.output_ids
    assert [done.seed for done in (first, second, third)] == [1, 2, 1]


def test_the_models_eos_and_the_requests_stop_tokens_end_a_response(models, start, lab, tmp_path):
    (free,) = lab.run(start(), [lab.request("a", lab.prompt(4), max_new_tokens=30, seed=5)])
    assert free.finish_reason == "length" and len(free.output_ids) == 30
    stop, other = free.output_ids[9], free.output_ids[4]
    where = free.output_ids.index(stop) + 1
    for options, sampling in (
        ({"eos_token_ids": (stop,)}, {}),
        ({}, {"stop_token_ids": (298, stop)}),
        ({"eos_token_ids": (stop, 298)}, {"stop_token_ids": (298,)}),
    ):
        (done,) = lab.run(start(**options), [lab.request("a", lab.prompt(4), max_new_tokens=30, seed=5, **sampling)])
        assert (done.finish_reason, done.output_ids) == ("stop", free.output_ids[:where])
        assert done.logprobs == pytest.approx(free.logprobs[:where], abs=1e-5)
    directory = tmp_path / "model"
    lab.save_model(lab.configs["qwen3"], directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [298, other]}))
    (done,) = lab.run(
        start(directory, eos_token_ids=None), [lab.request("a", lab.prompt(4), max_new_tokens=30, seed=5)]
    )
    assert done.output_ids == free.output_ids[: free.output_ids.index(other) + 1]


def test_a_stop_string_across_tokens_ends_a_response(start, lab, tmp_path):
    lab.save_model(lab.configs["qwen3"], tmp_path)
    letters = {chr(97 + n % 26) + chr(97 + n // 26): n for n in range(lab.vocab)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(letters, unk_token="aa"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    worker = start(tmp_path)
    given = {"max_new_tokens": 40, "seed": 3}
    (free,) = lab.run(worker, [lab.request("a", lab.prompt(4), **given)])
    text = tokenizer.decode(free.output_ids, skip_special_tokens=False)
    wanted = text[21:24]
    (done, neighbour) = lab.run(
        worker,
        [lab.request("a", lab.prompt(4), stop=("~~", wanted), **given), lab.request("b", lab.prompt(4), **given)],
    )
    tokens = next(n for n in range(1, 41) if wanted in text[: 2 * n])
    assert (done.finish_reason, done.output_ids) == ("stop", free.output_ids[:tokens])
    assert neighbour.finish_reason == "length"


REFUSED = [
    ({}, [], "input_ids is empty"),
    ({}, [1, 300], r"input_ids\[1\] is 300"),
    ({}, [-1], r"input_ids\[0\] is -1"),
    ({}, [1.5], r"input_ids\[0\] is 1.5"),
    ({"max_new_tokens": 0}, [1], "max_new_tokens is 0"),
    ({"max_new_tokens": 250}, [1] * 7, "max_new_tokens is 250 after a prompt of 7 .* at most 249"),
    ({"max_new_tokens": 1}, [1] * 256, ".*shorten the prompt to at most 255"),
    ({"temperature": math.nan}, [1], "temperature is nan"),
    ({"temperature": math.inf}, [1], "temperature is inf"),
    ({"temperature": -0.1}, [1], "temperature is -0.1"),
    ({"temperature": 1e-9}, [1], "temperature is 1e-09"),
    ({"top_p": 0.0}, [1], "top_p is 0.0"),
    ({"top_p": math.nan}, [1], "top_p is nan"),
    ({"top_k": 0}, [1], "top_k is 0"),
    ({"min_p": math.inf}, [1], "min_p is inf"),
    ({"seed": 0.5}, [1], "seed is 0.5"),
    ({"stop_token_ids": (300,)}, [1], "stop_token_ids has 300"),
    ({"stop": ("",)}, [1], "stop is"),
    ({"stop": ("x",)}, [1], ".*no tokenizer.json"),
]


def test_refusals_name_field_value_and_remedy_and_disturb_nobody(start, lab):
    worker = start()
    good = lab.request("good", lab.prompt(3), max_new_tokens=20)
    (expected,) = lab.run(worker, [good])
    bad = [
        lab.request(f"{n:02}", ids, **{"max_new_tokens": 5, **sampling}) for n, (sampling, ids, _) in enumerate(REFUSED)
    ]
    worker.submit([*bad[:9], good, *bad[9:]])
    for given, (_, _, message) in zip(bad, REFUSED, strict=True):
        with pytest.raises(EngineError, match=f"request '{given.request_id}': {message}"):
            worker.result(given.request_id).result(10)
    done = worker.result("good").result(30)
    assert (done.output_ids, done.logprobs) == (expected.output_ids, expected.logprobs)


def test_a_request_larger_than_the_cache_is_refused(start, lab):
    worker = start(kv_cache_mb=1, max_context_len=256)
    worker.limits = worker.limits._replace(cache_tokens=100)
    worker.submit([lab.request("a", lab.prompt(50), max_new_tokens=51)])
    with pytest.raises(
        EngineError, match=r"cache holds 100; raise kv_cache_mb of serving.engine or lower max_new_tokens to .* 50"
    ):
        worker.result("a").result(10)


def test_an_id_in_flight_is_refused_and_the_first_goes_on(start, lab):
    worker = start()
    worker.submit([lab.request("a", lab.prompt(3), max_new_tokens=9), lab.request("a", lab.prompt(4))])
    first, second = worker.result("a"), worker.result("a")
    assert len(first.result(30).output_ids) == 9
    with pytest.raises(EngineError, match="already in flight"):
        second.result(10)
    with pytest.raises(EngineError, match="was not submitted"):
        worker.result("a")
    assert len(lab.run(worker, [lab.request("a", lab.prompt(3), max_new_tokens=9)])[0].output_ids) == 9


def test_abort_ends_one_or_all_with_what_they_have(start, lab):
    worker = start(max_running_requests=2)
    worker.submit([lab.request(name, lab.prompt(3), max_new_tokens=240, seed=ord(name)) for name in "abcd"])
    futures = {name: worker.result(name) for name in "abcd"}
    wait_for(lambda: tokens_of(worker) > 10)
    worker.abort("a").result(10)
    worker.abort("d").result(10)
    worker.abort("unknown").result(10)
    first = futures["a"].result(10)
    assert first.finish_reason == "abort" and 0 < len(first.output_ids) < 240
    assert len(first.logprobs) == len(first.output_ids)
    assert futures["d"].result(10).output_ids == []
    worker.abort().result(10)
    assert {futures[name].result(10).finish_reason for name in "bc"} == {"abort"}
    assert worker.health()["running"] == worker.health()["queued"] == 0


def test_timing_is_in_order(start, lab):
    before = time.time()
    (done,) = lab.run(start(), [lab.request("a", lab.prompt(3), max_new_tokens=9)])
    order = [before, *(done.timing[name] for name in ("queued", "start", "first_token", "end")), time.time()]
    assert order == sorted(order)


def test_health_counts(start, lab):
    worker = start()
    lab.run(worker, [lab.request(f"{n}", lab.prompt(3 + n), max_new_tokens=4) for n in range(5)])
    health = worker.health()
    assert health["generated_tokens"] == 20 and health["steps"] == 4 and health["mean_batch"] == 5
    assert health["prefill_tokens"] == 25 and health["busy_seconds"] > 0 and health["recompute_seconds"] == 0


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_engine_stands_still_and_goes_on_as_if_nothing_was(mode, start, lab):
    requests = [lab.request(name, lab.prompt(4), max_new_tokens=200, seed=ord(name)) for name in "ab"]
    expected = lab.run(start(), requests)
    worker = start()
    worker.submit(requests)
    futures = [worker.result(given.request_id) for given in requests]
    wait_for(lambda: tokens_of(worker) > 20)
    worker.pause(mode).result(10)
    worker.submit([lab.request("c", lab.prompt(2), max_new_tokens=3)])
    late, before = worker.result("c"), tokens_of(worker)
    time.sleep(0.05)
    assert tokens_of(worker) == before and not late.done()
    assert worker.health()["queued"] == (1 if mode == "in_place" else 3)
    worker.flush_cache().result(10)
    worker.resume().result(10)
    for future, wanted in zip(futures, expected, strict=True):
        done = future.result(60)
        assert done.output_ids == wanted.output_ids
        assert lab.worst(done.logprobs, wanted.logprobs) < 1e-4
    assert len(late.result(10).output_ids) == 3
    assert (worker.health()["recompute_seconds"] > 0) == (mode == "retract")


def test_pause_abort_ends_all_and_holds_the_next(start, lab):
    worker = start()
    worker.submit([lab.request("a", lab.prompt(4), max_new_tokens=250)])
    future = worker.result("a")
    wait_for(lambda: tokens_of(worker) > 3)
    worker.pause("abort").result(10)
    assert future.result(10).finish_reason == "abort"
    worker.submit([lab.request("b", lab.prompt(4), max_new_tokens=2)])
    waiting = worker.result("b")
    time.sleep(0.03)
    assert not waiting.done()
    worker.resume().result(10)
    assert waiting.result(10).finish_reason == "length"
    with pytest.raises(EngineError, match="pause mode is 'soft'"):
        worker.pause("soft")


def test_another_number_for_the_same_weights_begins_a_span_and_changes_no_token(start, lab):
    requests = [lab.request(name, lab.prompt(4), max_new_tokens=120, seed=ord(name)) for name in "ab"]
    expected = lab.run(start(max_running_requests=1), requests)
    worker = start(max_running_requests=1)
    worker.submit(requests)
    futures = [worker.result(given.request_id) for given in requests]
    wait_for(lambda: tokens_of(worker) > 20)
    so_far = worker.outputs(["a", "b", "c"]).result(10)
    worker.count_as(5).result(10)
    assert worker.weight_version() == 5
    first, second = (future.result(60) for future in futures)
    assert [(done.output_ids, done.logprobs) for done in (first, second)] == [
        (wanted.output_ids, wanted.logprobs) for wanted in expected
    ]
    assert [span.version for span in first.weight_versions] == [0, 5]
    assert second.weight_versions == [VersionSpan(5, 0, 120)]
    # A request that waits has nothing yet; one that nobody has given, or that has ended, is left out.
    assert so_far["b"] == [] and set(so_far) == {"a", "b"}
    assert len(so_far["a"]) > 20 and first.output_ids[: len(so_far["a"])] == so_far["a"]
    assert worker.outputs(["a"]).result(10) == {}


def test_a_failing_forward_fails_all_and_is_told(start, lab):
    worker = start(max_running_requests=1)
    worker.submit([lab.request(name, lab.prompt(3), max_new_tokens=250) for name in "ab"])
    futures, ended = [worker.result(name) for name in "ab"], worker.ended()
    wait_for(lambda: tokens_of(worker) > 2)
    assert not ended.done()
    with torch.no_grad():
        worker.runner.model.lm_head.weight.fill_(torch.nan)
    for future in futures:
        with pytest.raises(EngineError, match="not finite"):
            future.result(10)
    assert ended.result(10).startswith("the engine stopped: FloatingPointError")
    with pytest.raises(EngineError, match="the engine stopped: FloatingPointError"):
        worker.health()
    worker.submit([lab.request("c", lab.prompt(3))])
    with pytest.raises(EngineError, match="the engine stopped"):
        worker.result("c").result(10)
    with pytest.raises(EngineError, match="the engine stopped"):
        worker.resume().result(10)


def test_spans_join_and_leave_out_what_is_empty():
    assert spans([(1, 0), (2, 3), (3, 3), (3, 5)], 8) == [VersionSpan(1, 0, 3), VersionSpan(3, 3, 8)]
    assert spans([(1, 0), (2, 0)], 2) == [VersionSpan(2, 0, 2)]
    assert spans([], 0) == []
    assert spans([(1, 0)], 0) == []
