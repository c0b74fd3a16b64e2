"""What a trainer depends on, of any server. `test_trap_NN_…` are the reference's ten traps."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import torch
from contract_servers import HEALTH_SECONDS, LONG, PROMPT, start_sglang

EOS = 307
CHAT = [{"role": "user", "content": "What is 3+4?"}]


def spans(answer):
    return [tuple(span.values()) for span in answer["meta_info"]["weight_versions"]]


def logprobs(answer):
    return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


def refused(server, path, body, word=""):
    status, answer = server.call(path, body)
    assert status == 400, answer
    assert word in str(answer)


def test_an_answer_has_what_a_trainer_reads(server):
    answer = server.generate(5, rid="r" * 32)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 5
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(entry[0] <= 0 and entry[2] is None for entry in meta["output_token_logprobs"])
    assert (meta["id"], meta["prompt_tokens"], meta["weight_version"]) == ("r" * 32, len(PROMPT), "default")
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert spans(answer) == [("default", 0, 5)]
    assert meta["e2e_latency"] > 0


def test_lists_of_prompts_and_texts(server):
    greedy = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    one, two = server.post("/generate", {"input_ids": [PROMPT, [1, 2]], "rid": ["a1", "b2"], "sampling_params": greedy})
    assert [answer["meta_info"]["id"] for answer in (one, two)] == ["a1", "b2"]
    assert one["output_ids"] == server.generate(3)["output_ids"]
    named = server.post("/generate", {"input_ids": [PROMPT, [1, 2]], "rid": "p", "sampling_params": greedy})
    assert [answer["meta_info"]["id"] for answer in named] == ["p_0", "p_1"]
    text = server.post("/generate", {"text": "3+4", "sampling_params": greedy})
    assert text["meta_info"]["prompt_tokens"] == 3
    assert "output_token_logprobs" not in text["meta_info"]
    pair = server.post("/generate", {"input_ids": PROMPT, "sampling_params": {**greedy, "n": 2}})
    assert [answer["output_ids"] for answer in pair] == [one["output_ids"]] * 2


def test_what_ends_a_response(server):
    ids = server.generate(12)["output_ids"]
    third = ids[2]
    first = ids.index(third)
    ended = server.generate(12, ignore_eos=False, stop_token_ids=[third])
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": third}
    assert ended["output_ids"] == ids[: first + 1]
    kept = server.generate(12, ignore_eos=False, stop_token_ids=[third], no_stop_trim=True, skip_special_tokens=False)
    assert kept["text"].startswith(ended["text"])
    assert len(kept["text"]) > len(ended["text"])
    whole = server.generate(12)["text"]
    string = server.generate(12, stop=[whole[1]])
    assert string["meta_info"]["finish_reason"] == {"type": "stop", "matched": whole[1]}
    assert string["text"] == whole[: whole.find(whole[1])]
    chatted = server.post("/v1/chat/completions", {"messages": CHAT, "model": "m", "temperature": 0})
    assert chatted["choices"][0]["matched_stop"] == EOS


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"sampling_params": {}}, "input_ids"),
        ({"input_ids": [], "sampling_params": {}}, "input_ids"),
        ({"input_ids": "abc", "sampling_params": {}}, "input_ids"),
        ({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": -5}}, "max_new_tokens"),
        ({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 5000}}, "1024"),
        ({"input_ids": PROMPT, "sampling_params": {"top_p": 7}}, "top_p"),
        ({"input_ids": PROMPT, "sampling_params": {"blub": 7}}, "blub"),
    ],
)
def test_a_refused_request_is_told_why(server, body, word):
    refused(server, "/generate", body, word)


def test_a_wrong_key_is_refused(server):
    for path, body in [("/generate", {"input_ids": PROMPT}), ("/pause_generation", {}), ("/model_info", None)]:
        for key in (None, "wrong-key"):
            status, answer = server.call(path, body, key=key)
            assert (status, answer["error"]) == (401, "Unauthorized")
    assert server.call("/health", key=None)[0] == 200
    assert server.call("/ready")[0] == 200


def test_abort_gives_what_there_is_and_takes_a_prefix(server):
    one, two = server.begin("aa1"), server.begin("aa1b")
    other = server.begin("bb")
    server.post("/abort_request", {"rid": "aa1"})
    for answer in (one.result(60), two.result(60)):
        finish = answer["meta_info"]["finish_reason"]
        assert finish["type"] == "abort"
        assert finish["status_code"] is None
        assert 0 < len(answer["output_ids"]) == len(logprobs(answer)) < LONG
        assert spans(answer)[-1][2] == len(answer["output_ids"])
    server.post("/abort_request", {"rid": "unknown"})
    server.post("/abort_request", {"abort_all": True})
    assert other.result(60)["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_id_in_flight_is_refused(server):
    running = server.begin("same")
    refused(server, "/generate", {"rid": "same", "input_ids": PROMPT}, "same")
    server.post("/abort_request", {"rid": "same"})
    running.result(60)


def test_chat_completions_and_models(server):
    body = {"messages": CHAT, "model": "m", "max_tokens": 6, "temperature": 0, "logprobs": True}
    answer = server.post("/v1/chat/completions", body)
    choice = answer["choices"][0]
    assert choice["message"] == {**choice["message"], "role": "assistant", "content": "\\boxed{6}"}
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 4
    assert answer["metadata"]["weight_version"] == "default"
    two = server.post("/v1/chat/completions", {**body, "n": 2, "temperature": 1.0, "max_completion_tokens": 6})
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    stopped = server.post("/v1/chat/completions", {**body, "stop": "{"})
    assert stopped["choices"][0]["message"]["content"] == "\\boxed"
    assert server.post("/v1/chat/completions", {**body, "max_tokens": 1})["choices"][0]["finish_reason"] == "length"
    status, error = server.call("/v1/chat/completions", {**body, "messages": []})
    assert status == 400
    assert "essages" in error["message"]
    assert server.get("/v1/models")["data"][0]["max_model_len"] == 1024


def test_a_chat_streams(server):
    import json
    import urllib.request

    body = {"messages": CHAT, "model": "m", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.read().decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "\\boxed{6}"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert events[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_both_servers_give_equal_greedy_tokens_and_log_probabilities(servers, tensors, weights, clean):
    both = [servers("reroll"), servers("sglang")]
    try:
        for folder in ("base", "other"):
            for server in both:
                server.load(weights[folder], flush_cache=True)
            for prompt in (PROMPT, [305, 51, 43, 52], list(range(40, 90))):
                ours, theirs = (server.generate(24, prompt=prompt) for server in both)
                assert ours["output_ids"] == theirs["output_ids"]
                assert ours["text"] == theirs["text"]
                assert logprobs(ours) == pytest.approx(logprobs(theirs), abs=1e-4)
    finally:
        for server in both:
            clean(server)


@contextmanager
def process_group(server, name="weights", backend="gloo"):
    """Rank 0 of a group with the server."""
    from reroll.models.process_groups import Member, listen

    group, store = listen(name, 2, backend, 60)
    joining = server.threads.submit(
        server.post,
        "/init_weights_update_group",
        {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": 2,
            "group_name": name,
            "backend": backend,
        },
    )
    member = Member(group, 0, store)
    try:
        joining.result(60)
        yield member
    finally:
        leaving = server.threads.submit(server.call, "/destroy_weights_update_group", {"group_name": name})
        member.leave()
        leaving.result(60)


def send(server, member, tensors, expect=200, flattened=True, **fields):
    """Broadcasts one bucket into the group while the server receives it."""
    from reroll.models.process_groups import flatten, specs

    found = specs(tensors)
    body = {
        "names": [spec.name for spec in found],
        "dtypes": [spec.dtype for spec in found],
        "shapes": [list(spec.shape) for spec in found],
        "group_name": member.group.name,
        "flush_cache": False,
        "load_format": "flattened_bucket" if flattened else None,
        **fields,
    }
    receiving = server.threads.submit(server.post, "/update_weights_from_distributed", body, expect)
    member.broadcast([flatten(list(tensors.values()))] if flattened else list(tensors.values()))
    return receiving.result(60)


def parts(tensors, count=2):
    names = list(tensors)
    return [{name: tensors[name] for name in names[part::count]} for part in range(count)]


@pytest.mark.parametrize("flattened", [True, False])
def test_a_refresh_through_a_process_group(server, tensors, weights, flattened):
    server.load(weights["other"], flush_cache=True)
    wanted, new = server.checksum, server.generate(6, prompt=[1, 2, 3])
    server.load(weights["base"], flush_cache=True)
    assert server.checksum != wanted
    running = server.begin("running")
    with process_group(server) as member:
        server.post("/pause_generation", {"mode": "retract"})
        server.post("/flush_cache?timeout=0")
        server.post("/begin_weight_update")
        for bucket in parts(tensors["other"]):
            send(server, member, bucket, flattened=flattened)
        server.post("/end_weight_update")
        server.post("/update_weight_version", {"new_version": "1", "abort_all_requests": False})
        server.post("/continue_generation")
    assert server.checksum == wanted
    assert server.version == "1"
    answer = running.result(60)
    (old, _, middle), (second, start, end) = spans(answer)
    assert (old, second, end) == ("default", "1", LONG)
    assert 0 < middle == start < LONG
    assert answer["meta_info"]["weight_version"] == "1"
    after = server.generate(6, prompt=[1, 2, 3])
    assert after["output_ids"] == new["output_ids"]
    assert logprobs(after) == pytest.approx(logprobs(new), abs=1e-5)


def test_a_refresh_from_disk(server, weights):
    running = server.begin("running")
    server.post("/pause_generation", {"mode": "retract"})
    server.post("/flush_cache?timeout=0")
    answer = server.load(weights["other"], weight_version="1")
    assert answer["success"] is True
    assert server.version == "1"
    server.post("/continue_generation")
    assert [version for version, _, _ in spans(running.result(60))] == ["default", "1"]


def test_a_disk_update_that_fails_leaves_the_weights(server, tmp_path):
    before = server.checksum
    body = {"model_path": str(tmp_path / "absent"), "load_format": "auto", "weight_version": "1"}
    answer = server.post("/update_weights_from_disk", body, expect=400)
    assert answer["success"] is False
    assert server.checksum == before
    assert server.version == "default"


def test_trap_01_updates_from_a_group_need_a_session_and_disk_does_not(server, weights):
    body = {"names": ["a"], "dtypes": ["float32"], "shapes": [[2]], "group_name": "g", "flush_cache": False}
    refused(server, "/update_weights_from_distributed", body, "begin_weight_update")
    refused(server, "/end_weight_update", {}, "begin_weight_update")
    server.post("/begin_weight_update")
    refused(server, "/begin_weight_update", {}, "already open")
    refused(server, "/update_weights_from_distributed", body, "g")
    server.post("/end_weight_update")
    assert server.load(weights["base"])["success"] is True


def test_trap_02_without_a_pause_an_update_waits_for_what_runs_and_holds_up_what_comes(server, weights):
    running = server.begin("running")
    update = server.threads.submit(server.load, weights["other"], weight_version="1", flush_cache=True)
    time.sleep(0.2)
    coming = server.threads.submit(server.generate, 4)
    assert spans(running.result(60)) == [("default", 0, LONG)]
    assert update.result(60)["success"] is True
    assert spans(coming.result(60)) == [("1", 0, 4)]


def test_trap_03_a_refused_flush_comes_after_the_weights_have_changed(server, weights):
    before = server.checksum
    running = server.begin("running")
    server.post("/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(weights["other"]), "load_format": "auto", "flush_cache": True}
    refused(server, "/update_weights_from_disk", body, "flush")
    assert server.checksum != before
    server.post("/pause_generation", {"mode": "retract"})
    server.post("/flush_cache?timeout=0")
    server.post("/continue_generation")
    assert len(running.result(60)["output_ids"]) == LONG


@pytest.mark.parametrize(("mode", "flushes"), [("in_place", 400), ("retract", 200)])
def test_trap_04_what_runs_goes_on_after_a_pause_and_what_comes_waits(server, mode, flushes):
    running = server.begin("running")
    server.post("/pause_generation", {"mode": mode})
    assert server.call("/ready")[0] == 503
    server.post("/flush_cache?timeout=0", expect=flushes)
    coming = server.threads.submit(server.generate, 4)
    time.sleep(0.5)
    assert not running.done()
    assert not coming.done()
    server.post("/continue_generation")
    assert server.call("/ready")[0] == 200
    assert coming.result(60)["meta_info"]["finish_reason"]["type"] == "length"
    assert len(running.result(60)["output_ids"]) == LONG


def test_trap_04_a_pause_that_aborts_ends_all_and_new_requests_wait(server):
    running = [server.begin(f"running-{number}") for number in range(3)]
    server.post("/pause_generation", {"mode": "abort"})
    for future in running:
        answer = future.result(60)
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["output_ids"]) == len(logprobs(answer))
    coming = server.threads.submit(server.generate, 4)
    time.sleep(0.5)
    assert not coming.done()
    server.post("/continue_generation")
    assert len(coming.result(60)["output_ids"]) == 4


def test_trap_05_the_first_bucket_with_a_version_stamps_it(server, tensors):
    first, second = parts(tensors["other"])
    with process_group(server) as member:
        server.post("/pause_generation", {"mode": "retract"})
        server.post("/begin_weight_update")
        send(server, member, first, weight_version="7")
        assert server.version == "7"
        send(server, member, second)
        server.post("/end_weight_update")
        server.post("/continue_generation")
    assert spans(server.generate(4)) == [("7", 0, 4)]


def test_trap_05_a_new_version_aborts_unless_told_not_to(server):
    running = server.begin("running")
    server.post("/update_weight_version", {"new_version": "a", "abort_all_requests": False})
    time.sleep(0.2)
    answer = server.post("/update_weight_version", {"new_version": "b"})
    assert answer["new_version"] == server.version == "b"
    aborted = running.result(60)
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
    assert [version for version, _, _ in spans(aborted)][:2] == ["default", "a"]


def test_trap_06_after_a_failed_bucket_only_a_whole_load_makes_the_weights_known(server, tensors, weights):
    before = server.checksum
    server.load(weights["other"])
    wanted = server.checksum
    server.load(weights["base"])
    first, second = parts(tensors["other"])
    with process_group(server) as member:
        server.post("/pause_generation", {"mode": "retract"})
        server.post("/begin_weight_update")
        send(server, member, first)
        body = {"names": list(second), "dtypes": ["float32"] * len(second), "shapes": [[1]] * len(second)}
        body |= {"group_name": "absent", "flush_cache": False}
        refused(server, "/update_weights_from_distributed", body, "absent")
        ended, answer = server.call("/end_weight_update", {})
        # SGLang serves a mixture and says nothing; the embedded engine says what is missing and serves the old weights.
        assert (ended, server.checksum == before) == ((200, False) if server.kind == "sglang" else (400, True)), answer
        server.load(weights["other"], weight_version="1")
        assert server.checksum == wanted
        server.post("/flush_cache?timeout=0")
        server.post("/continue_generation")
    assert spans(server.generate(4)) == [("1", 0, 4)]


def test_trap_07_a_disk_update_names_its_format(server, weights):
    before = server.checksum
    server.load(weights["other"], load_format="auto")
    changed = server.checksum
    assert changed != before
    server.load(weights["base"], load_format="auto")
    assert server.checksum == before


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_trap_07_a_server_that_began_with_dummy_weights_loads_dummy_weights_unless_told(servers, weights, tmp_path):
    wanted = servers("sglang").checksum
    server = start_sglang(tmp_path, "--load-format", "dummy")
    try:
        server.call("/update_weights_from_disk", {"model_path": str(weights["base"]), "flush_cache": False})
        assert server.checksum != wanted
        server.load(weights["base"], load_format="auto")
        assert server.checksum == wanted
    finally:
        server.stop()


def test_trap_08_a_server_says_that_it_is_no_data_parallel_one(server):
    assert server.get("/server_info")["dp_size"] == 1


def test_trap_09_a_paused_server_is_not_healthy_and_gives_up_what_it_has_flushed(server):
    running = server.begin("running")
    server.post("/pause_generation", {"mode": "retract"})
    assert server.call("/health_generate", timeout=HEALTH_SECONDS + 30)[0] == 503
    server.post("/abort_request", {"rid": "running"})
    answer = running.result(60)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(answer["output_ids"]) == len(logprobs(answer)) < LONG
    server.post("/continue_generation")
    assert server.call("/health_generate", timeout=HEALTH_SECONDS + 30)[0] == 200
    assert server.call("/ready")[0] == 200


# What a CPU cannot show: data parallelism and deterministic inference need devices.
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@NO_CUDA
@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_trap_08_a_data_parallel_server_refuses_a_group(tmp_path):
    server = start_sglang(tmp_path, "--dp-size", "2", device="cuda")
    try:
        assert server.get("/server_info")["dp_size"] == 2
        body = {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 2, "backend": "nccl"}
        assert server.call("/init_weights_update_group", body)[0] >= 400
    finally:
        server.stop()


def siblings(server, **sampling):
    return [server.generate(16, temperature=1.0, **sampling)["output_ids"] for _ in range(4)]


@pytest.mark.gpu
@NO_CUDA
@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_trap_10_deterministic_siblings_without_seeds_are_identical(tmp_path):
    server = start_sglang(tmp_path, "--enable-deterministic-inference", device="cuda")
    try:
        assert len({tuple(ids) for ids in siblings(server)}) == 1
        assert siblings(server)[0] == siblings(server, sampling_seed=42)[0]
        seeded = [server.generate(16, temperature=1.0, sampling_seed=seed)["output_ids"] for seed in range(4)]
        assert len({tuple(ids) for ids in seeded}) > 1
    finally:
        server.stop()


def test_trap_10_a_sample_without_a_seed_gets_one_of_its_own(server):
    assert len({tuple(ids) for ids in siblings(server)}) > 1
    if server.kind == "reroll":  # SGLang heeds seeds in deterministic inference alone
        assert len({tuple(ids) for ids in siblings(server, sampling_seed=3)}) == 1
