"""What the client does when a server or the way to it misbehaves."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_engine import client_of, request, run, simulated, start

from reroll.api import EngineError, EngineUnavailable, RequestRefused, VersionSpan
from reroll.serving.sglang import client as client_module
from reroll.serving.sglang.client import RESENDS, generation_body, read_completion

LONG = ("--delay", 600)
SLOW = ("--delay", 60)
VERSION = ("--weight-version", 3)


def test_a_response_has_its_tokens_log_probabilities_spans_and_seed():
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url + "/") as client:
            one, again, other = await asyncio.gather(
                *start(client, request("a", seed=7), request("b", seed=7), request("c", seed=8))
            )
            assert one.output_ids == again.output_ids != other.output_ids
            assert len(one.output_ids) == len(one.logprobs) == 8
            assert one.weight_versions == [VersionSpan(3, 0, 8)]
            assert (one.request_id, one.finish_reason, one.seed) == ("a", "length", 7)
            assert one.timing["queued"] <= one.timing["start"] <= one.timing["end"]
            stop = one.output_ids[2]
            stopped = await client.generate(request("d", seed=7, stop_token_ids=(stop,)))
            assert stopped.finish_reason == "stop"
            assert stopped.output_ids == one.output_ids[:3]

    run(body())


@pytest.mark.parametrize("after", [False, True])
def test_a_dropped_reply_is_asked_for_again_under_another_id_and_is_the_same(after):
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as client:
            whole = await client.generate(request("a"))
            await server.order("/generate", "drop", times=RESENDS, after=after)
            assert (await client.generate(request("a"))).output_ids == whole.output_ids
            state = await server.state()
            assert state["counts"]["/generate"] == RESENDS + 2
            assert len(state["generated"]) == (RESENDS + 2 if after else 2)
            assert set(state["generated"].values()) == {1}

    run(body())


def test_replies_that_are_always_dropped_are_given_up():
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as client:
            await server.order("/generate", "drop", times=100)
            with pytest.raises(EngineUnavailable, match=f"SGLang at {server.url} does not answer"):
                await client.generate(request("a"))
            assert (await server.state())["counts"]["/generate"] == RESENDS + 1

    run(body())


def test_a_refused_connection_is_a_server_that_is_not_there():
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as client:
            server.kill()
            with pytest.raises(EngineUnavailable, match="does not answer"):
                await client.generate(request("a"))
            with pytest.raises(EngineUnavailable, match="does not answer"):
                await client.control("/model_info", method="GET")

    run(body())


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_is_asked_again_later(status, monkeypatch):
    monkeypatch.setattr(client_module, "BUSY_SECONDS", (0.01, 0.02))

    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as client:
            await server.order("/generate", "status", status=status, times=4)
            assert len((await client.generate(request("a"))).output_ids) == 8
            assert (await server.state())["counts"]["/generate"] == 5

    run(body())


@pytest.mark.parametrize("status", [400, 500])
def test_a_refusal_is_the_requests_own_with_the_servers_words(status):
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as client:
            await server.order("/generate", "status", status=status, message="this is too much")
            with pytest.raises(RequestRefused, match=f"'a': SGLang answers with {status}: this is too much"):
                await client.generate(request("a"))
            await client.generate(request("b"))
            with pytest.raises(RequestRefused, match="maximum context length"):
                await client.generate(request("c", tokens=5000))

    run(body())


def test_a_wrong_key_is_told_by_the_option_that_holds_it():
    async def body():
        async with simulated(*VERSION, SIMULATED_API_KEY="right") as server:
            async with client_of(server.url, "wrong") as client:
                for call in (client.generate(request("a")), client.control("/model_info", method="GET")):
                    with pytest.raises(EngineError, match=r"refuses the key for /.*serving\.api_key_env") as found:
                        await call
                    assert not isinstance(found.value, EngineUnavailable | RequestRefused)
            async with client_of(server.url, "right") as client:
                assert (await client.generate(request("a"))).finish_reason == "length"

    run(body())


def test_a_response_that_takes_too_long_is_refused_and_the_server_stops_working_on_it():
    async def body():
        async with simulated(*LONG, *VERSION) as server, client_of(server.url, request_timeout=0.1) as client:
            with pytest.raises(RequestRefused, match=r"no response within 0\.1 s; raise serving\.request_timeout"):
                await client.generate(request("a"))
            await server.in_flight(0)

    run(body())


def test_a_cancelled_request_leaves_the_server_and_only_that_one():
    async def body():
        never = ("--notice-disconnect", 600)
        async with simulated(*LONG, *VERSION, *never) as server, client_of(server.url) as client:
            tasks = start(client, *(request(f"r{number}") for number in range(20)))
            await server.in_flight(20)
            tasks[1].cancel()
            await server.in_flight(19)
            await client.abort("r10")
            assert (await tasks[10]).finish_reason == "abort"
            await client.abort("r1")  # is none that is in flight
            assert (await server.state())["in_flight"] == 18
            assert sum(task.done() for task in tasks) == 2
            await client.abort(None)
            rest = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(rest.pop(1), asyncio.CancelledError)
            assert {completion.finish_reason for completion in rest} == {"abort"}

    run(body())


def test_aborted_responses_keep_what_there_is():
    async def body():
        async with simulated(*SLOW, *VERSION) as server, client_of(server.url) as client:
            (task,) = start(client, request("a", tokens=900))
            await server.until(lambda state: max(state["produced"].values(), default=0) > 1)
            await client.abort("a")
            found = await task
            assert found.finish_reason == "abort"
            assert 1 < len(found.output_ids) == len(found.logprobs) == found.weight_versions[-1].end < 900

    run(body())


def test_thousands_of_cancellations_do_not_hold_up_control():
    async def body():
        async with simulated(*LONG, *VERSION) as server, client_of(server.url, connections=400) as client:
            tasks = start(client, *(request(f"{number}") for number in range(400)))
            await server.in_flight(400)
            await server.order("/abort_request", "hang", times=400)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await server.until(lambda state: state["counts"].get("/abort_request", 0) >= 4)
            assert (await client.control("/model_info", method="GET"))["weight_version"] == "3"

    run(body())


def test_a_control_route_that_hangs_is_a_server_that_does_not_answer():
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url, answer_timeout=0.1) as client:
            await server.order("/pause_generation", "hang")
            with pytest.raises(EngineUnavailable, match=r"did not answer /pause_generation within 0\.1 s"):
                await client.control("/pause_generation", {"mode": "retract"})
            await server.order("/update_weights_from_disk", "delay", seconds=0.3)
            with pytest.raises(EngineError, match="update_weights_from_disk with 400: .*nowhere"):
                await client.control("/update_weights_from_disk", {"model_path": "/nowhere"}, slow=True)
            await server.order("/begin_weight_update", "drop")
            with pytest.raises(EngineUnavailable):
                await client.control("/begin_weight_update", {})
            assert (await server.state())["counts"]["/begin_weight_update"] == 1  # not everything can be asked twice

    run(body())


class Scripted:
    """A server that gives each request on a connection the next of its replies, and then closes the connection or not,
    without having announced it."""

    def __init__(self, reply, closes=False):
        self.reply, self.closes, self.connections, self.requests = reply, closes, 0, 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self, f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                self.requests += 1
                writer.write(self.reply)
                await writer.drain()
                if self.closes:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


def http(body, status=200):
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status} OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


def reply(tokens=(4, 5, 6), spans=None, **changes):
    meta = {
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        "finish_reason": {"type": "length", "length": len(tokens)},
        "completion_tokens": len(tokens),
        "weight_version": "2",
        "weight_versions": [{"version": "2", "start": 0, "end": len(tokens)}] if spans is None else spans,
        "e2e_latency": 0.5,
    }
    return {"output_ids": list(tokens), "meta_info": {**meta, **changes}}


def test_idle_connections_that_the_server_closed_are_no_failure():
    async def body():
        async with Scripted(http(reply()), closes=True) as (server, url), client_of(url) as client:
            for turn in range(5):
                await asyncio.gather(*start(client, *(request(f"{turn}-{number}") for number in range(8))))
                # The ends of all eight are there, and the loop has seen none of them.
                time.sleep(0.01)
            assert server.requests == 40

    run(body())


def test_connections_are_used_again():
    async def body():
        async with Scripted(http(reply())) as (server, url), client_of(url) as client:
            for number in range(5):
                await client.generate(request(f"{number}"))
            assert (server.requests, server.connections) == (5, 1)

    run(body())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("no json", "is not JSON: b'no json'"),
        ({}, "cannot be read: KeyError"),
        ([1], "cannot be read: TypeError"),
        ({"meta_info": [1]}, "cannot be read: AttributeError"),
        (reply(output_token_logprobs=[]), "3 tokens without log-probabilities"),
        (reply(output_token_logprobs=None, output_ids=None), "3 tokens without log-probabilities"),
        (reply(output_token_logprobs=[[-0.5, 4, None]]), "3 output_ids, but log-probabilities of 1"),
        (reply(output_token_logprobs=[[None, token, None] for token in (4, 5, 6)]), "cannot be read: TypeError"),
        (reply(spans=[{"version": "2", "start": 0, "end": 2}]), "do not cover 3 tokens"),
        (reply(spans=[{"version": "2", "start": 1, "end": 3}]), "do not cover 3 tokens"),
        (reply(spans=[{"version": "2", "start": 0, "end": 4}]), "do not cover 3 tokens"),
        (reply(spans=[{"version": "default", "start": 0, "end": 3}]), "weight version 'default' is none that this run"),
        (reply(spans=[{"version": 1.5, "start": 0, "end": 3}]), "weight version 1.5 is none"),
        (reply(finish_reason="stop"), "cannot be read: AttributeError"),
        (reply(finish_reason={"type": "tired"}), "finish_reason"),
        (reply(finish_reason=None), "finish_reason"),
    ],
)
def test_a_reply_without_what_a_trainer_must_know_is_an_error_that_says_what(answer, message):
    async def body():
        async with Scripted(http(answer)) as (server, url), client_of(url) as client:
            with pytest.raises(EngineError, match=message) as found:
                await client.generate(request("a"))
            assert not isinstance(found.value, EngineUnavailable | RequestRefused)
            assert server.requests == 1

    run(body())


def test_a_reply_of_one_version_may_name_just_that_and_an_empty_one_none():
    one = read_completion(reply(spans=[]), request("a"), 0.0)
    assert one.weight_versions == [VersionSpan(2, 0, 3)]
    none = read_completion(reply(tokens=(), weight_version="default"), request("a"), 0.0)
    assert (none.output_ids, none.weight_versions) == ([], [])


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(0, 2**31),
)
def test_every_tiling_is_read_as_it_stands(parts, seed):
    spans, end = [], 0
    for version, length in parts:
        spans.append({"version": str(version), "start": end, "end": end + length})
        end += length
    asked = request("a", seed=seed)
    found = read_completion(reply(tokens=range(end), spans=spans), asked, 0.0)
    assert found.output_ids == list(range(end))
    assert found.seed == seed
    wanted = [VersionSpan(int(span["version"]), span["start"], span["end"]) for span in spans]
    assert found.weight_versions == [span for span in wanted if span.end > span.start]


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=4), st.integers(0, 5))
def test_spans_that_are_taken_cover_every_token_once(pairs, length):
    spans = [{"version": "2", "start": start, "end": end} for start, end in pairs]
    try:
        found = read_completion(reply(tokens=range(length), spans=spans), request("a"), 0.0)
    except EngineError:
        return
    covered = [place for span in found.weight_versions for place in range(span.start, span.end)]
    assert covered == list(range(length))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["2", "stop", "type", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "version"]), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(
        ["output_token_logprobs", "finish_reason", "weight_versions", "weight_version", "e2e_latency", "output_ids"]
    ),
    anything,
)
def test_whatever_a_reply_holds_it_is_read_whole_or_refused(field, value):
    found = reply()
    (found if field == "output_ids" else found["meta_info"])[field] = value
    try:
        completion = read_completion(json.loads(json.dumps(found)), request("a"), 0.0)
    except EngineError:
        return
    assert completion.output_ids == [4, 5, 6] or field == "output_token_logprobs"
    assert len(completion.output_ids) == len(completion.logprobs)
    assert sum(span.end - span.start for span in completion.weight_versions) == len(completion.output_ids)


def test_the_body_says_all_that_decides_a_response():
    asked = request("a", tokens=5, seed=3, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, stop=("x",))
    assert json.loads(generation_body(asked, "id")) == {
        "rid": "id",
        "input_ids": [5, 6],
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 4,
            "min_p": 0.1,
            "sampling_seed": 3,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "stop": ["x"],
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }


def test_ids_have_one_length_and_two_clients_share_none():
    async def body():
        async with simulated(*VERSION) as server, client_of(server.url) as one, client_of(server.url) as other:
            for number in range(3):
                await asyncio.gather(*start(one, request(f"{number}")), *start(other, request(f"{number}")))
            rids = (await server.state())["generated"]
            assert len(rids) == 6
            assert {len(rid) for rid in rids} == {32}

    run(body())
