"""The simulated server keeps the rules that clients of SGLang are written against."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

PROGRAM = Path(__file__).with_name("simulated_server.py")


class Client:
    """One session to one server."""

    def __init__(self, session, process):
        self.session, self.process = session, process

    async def post(self, path, body=None, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.post(path, json={} if body is None else body, headers=headers) as reply:
            return reply.status, await reply.json() if reply.content_type == "application/json" else await reply.text()

    async def generate(self, rid, tokens=8, **sampling):
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, **sampling}
        body = {"rid": rid, "input_ids": [5, 6], "sampling_params": sampling, "return_logprob": True}
        return await self.post("/generate", body)

    def start(self, *arguments, **sampling):
        return asyncio.create_task(self.generate(*arguments, **sampling))

    async def status(self, path):
        async with self.session.get(path) as reply:
            return reply.status

    async def state(self):
        async with self.session.get("/simulate") as reply:
            return await reply.json()

    async def until(self, holds):
        """Waits for a state."""
        while not holds(await self.state()):
            await asyncio.sleep(0.005)

    async def in_flight(self, count):
        await self.until(lambda state: state["in_flight"] == count)

    async def produced(self, rid, more_than=0):
        """Waits for tokens of a request; with a delay of a minute, one in 900 comes every 67 milliseconds."""
        await self.until(lambda state: state["produced"].get(rid, 0) > more_than)
        return (await self.state())["produced"][rid]


@asynccontextmanager
async def simulated(*options, **environment):
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        port = process.stdout.readline().strip()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
            yield Client(session, process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run(test, *options, **environment):
    async def inside():
        async with simulated(*options, **environment) as client:
            await asyncio.wait_for(test(client), 60)

    asyncio.run(inside())


def test_tokens_follow_from_the_seed_and_replies_have_sglangs_shape():
    async def test(client):
        _, first = await client.generate("a", sampling_seed=7)
        _, again = await client.generate("b", sampling_seed=7)
        _, other = await client.generate("c", sampling_seed=8)
        assert first["output_ids"] == again["output_ids"] != other["output_ids"]
        meta = first["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 8}
        assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 8}]
        assert [token for _, token, _ in meta["output_token_logprobs"]] == first["output_ids"]
        assert all(logprob <= 0 for logprob, *_ in meta["output_token_logprobs"])
        stop = first["output_ids"][2]
        _, short = await client.generate("d", sampling_seed=7, stop_token_ids=[stop], ignore_eos=False)
        assert short["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert (await client.generate("e", 2000))[0] == (await client.generate("f", bogus=1))[0] == 400

    run(test)


def test_a_retract_pause_queues_flushes_and_goes_on_with_two_spans():
    async def test(client):
        running = client.start("a", 900)
        await client.produced("a")
        assert (await client.post("/flush_cache?timeout=0"))[0] == 400
        await client.post("/pause_generation", {"mode": "retract"})
        assert await client.status("/ready") == await client.status("/health") == 503
        waiting = client.start("b", 900)
        await client.in_flight(2)
        assert (await client.post("/flush_cache?timeout=0"))[0] == 200
        await client.post("/update_weight_version", {"new_version": "1", "abort_all_requests": False})
        before = await client.produced("a")
        await client.post("/continue_generation")
        await client.produced("a", before)
        await client.produced("b")
        assert await client.status("/ready") == 200
        await client.post("/abort_request", {"abort_all": True})
        meta = (await running)[1]["meta_info"]
        old, new = meta["weight_versions"]
        assert old == {"version": "default", "start": 0, "end": before}
        assert new == {"version": "1", "start": before, "end": meta["completion_tokens"]}
        assert meta["num_retractions"] == 1
        assert [span["version"] for span in (await waiting)[1]["meta_info"]["weight_versions"]] == ["1"]

    run(test, "--delay", 60, "--health-timeout", 0)


def test_a_pause_in_place_keeps_its_cache():
    async def test(client):
        running = client.start("a", 100)
        await client.in_flight(1)
        await client.post("/pause_generation", {"mode": "in_place"})
        assert (await client.post("/flush_cache"))[0] == 400
        await client.post("/abort_request", {"rid": "a"})
        assert not running.done()
        await client.post("/continue_generation")
        assert (await running)[1]["meta_info"]["finish_reason"]["type"] == "abort"

    run(test, "--delay", 60)


def test_an_abort_matches_prefixes_of_a_known_id_and_gives_what_there_is():
    async def test(client):
        first, second = client.start("r1", 900), client.start("r10", 900)
        await client.produced("r1")
        await client.produced("r10")
        await client.post("/abort_request", {"rid": "r"})
        assert not first.done()
        await client.post("/abort_request", {"rid": "r1"})
        for status, reply in (await first, await second):
            meta = reply["meta_info"]
            assert (status, meta["finish_reason"]["type"]) == (200, "abort")
            assert 0 < len(reply["output_ids"]) == meta["completion_tokens"] < 900
        third = client.start("x", 900)
        await client.in_flight(1)
        await client.post("/update_weight_version", {"new_version": "1"})
        assert (await third)[1]["meta_info"]["finish_reason"]["type"] == "abort"

    run(test, "--delay", 60)


def test_an_abort_misses_what_waits_for_a_pause_to_end():
    async def test(client):
        await client.post("/pause_generation", {"mode": "retract"})
        waiting = client.start("a")
        await client.in_flight(1)
        await client.post("/abort_request", {"rid": "a"})
        await client.post("/continue_generation")
        assert (await waiting)[1]["meta_info"]["finish_reason"]["type"] == "length"

    run(test)


def test_weights_load_between_begin_and_end_only():
    async def test(client):
        bucket = {"names": ["w"], "dtypes": ["float32"], "shapes": [[1]], "group_name": "g", "flush_cache": False}
        status, reply = await client.post("/update_weights_from_distributed", bucket)
        assert status == 400 and not reply["success"] and "begin_weight_update()" in reply["message"]
        assert (await client.post("/end_weight_update"))[0] == 400
        assert (await client.post("/init_weights_update_group", {"group_name": "g"}))[0] == 200
        assert [(await client.post("/begin_weight_update"))[0] for _ in range(2)] == [200, 400]
        before = await client.post("/weights_checker", {"action": "checksum"})
        assert (await client.post("/update_weights_from_distributed", bucket))[0] == 200
        assert await client.post("/weights_checker", {"action": "checksum"}) != before
        assert (await client.post("/end_weight_update"))[0] == 200
        group = {"group_name": "g"}
        assert [(await client.post("/destroy_weights_update_group", group))[0] for _ in range(2)] == [200, 400]

    run(test)


def test_a_load_that_cannot_flush_fails_after_the_weights_changed(tmp_path):
    async def test(client):
        running = client.start("a")
        await client.in_flight(1)
        await client.post("/pause_generation", {"mode": "in_place"})
        load = {"model_path": str(tmp_path), "weight_version": "1"}
        status, reply = await client.post("/update_weights_from_disk", load)
        assert status == 400 and "were updated" in reply["message"]
        state = await client.state()
        assert (state["version"], state["loaded"]) == ("1", ["random"])
        assert (await client.post("/update_weights_from_disk", {"model_path": "/nowhere"}))[0] == 400
        await client.post("/continue_generation")
        # Unpaused, a load waits for what runs, and lets in nothing new.
        loading = asyncio.create_task(client.post("/update_weights_from_disk", {**load, "load_format": "auto"}))
        await client.until(lambda state: state["waiting_to_write"])
        late = client.start("b")
        await client.in_flight(2)
        await client.post("/abort_request", {"abort_all": True})
        assert (await loading)[0] == 200
        await running
        state = await client.state()
        assert (state["loaded"], state["in_flight"]) == (["random", str(tmp_path)], 1)
        await client.post("/pause_generation", {"mode": "abort"})
        assert (await late)[1]["meta_info"]["finish_reason"]["type"] == "abort"

    run(test, "--delay", 600, "--load-format", "dummy")


def test_an_id_in_flight_is_refused_also_when_its_client_has_gone():
    async def test(client):
        lost = client.start("a")
        await client.in_flight(1)
        assert (await client.generate("a"))[0] == 400
        lost.cancel()
        assert (await client.generate("a"))[0] == 400
        await client.in_flight(0)
        assert (await client.state())["generated"] == {"a": 1}

    run(test, "--delay", 60, "--notice-disconnect", 0.1)


def test_keys_are_checked_and_probes_are_open():
    async def test(client):
        assert [(await client.post("/generate", {}, key))[0] for key in (None, "wrong", "admin", "normal")] == [
            *(401, 401, 401, 400),
        ]
        assert [(await client.post("/flush_cache", {}, key))[0] for key in (None, "normal", "admin")] == [401, 401, 200]
        assert await client.status("/health") == await client.status("/ready") == 200
        assert await client.status("/model_info") == 401

    run(test, SIMULATED_API_KEY="normal", SIMULATED_ADMIN_API_KEY="admin")


def test_faults_strike_when_ordered():
    async def test(client):
        await client.post(
            "/simulate",
            [
                {"path": "/generate", "kind": "drop", "after": True},
                {"path": "/generate", "kind": "status", "status": 503, "skip": 1},
                {"path": "/flush_cache", "kind": "hang"},
                {"path": "/begin_weight_update", "kind": "delay", "seconds": 0.05},
            ],
        )
        with pytest.raises(aiohttp.ClientError):
            await client.generate("a")
        assert [(await client.generate(name))[0] for name in "bcd"] == [200, 503, 200]
        state = await client.state()
        assert state["generated"] == {"a": 1, "b": 1, "d": 1} and state["counts"]["/generate"] == 4
        hanging = asyncio.create_task(client.post("/flush_cache"))
        assert (await client.post("/begin_weight_update"))[0] == 200
        assert not hanging.done()
        hanging.cancel()
        await client.post("/simulate", {"path": "/model_info", "kind": "die"})
        with pytest.raises(aiohttp.ClientError):
            await client.status("/model_info")
        assert client.process.wait() == 9

    run(test)


def test_two_thousand_requests_are_in_flight_at_once():
    async def test(client):
        running = [client.start(f"{number:04}", 16) for number in range(2000)]
        await client.in_flight(2000)
        await client.post("/pause_generation", {"mode": "retract"})
        assert not any(task.done() for task in running)
        await client.post("/continue_generation")
        await client.post("/abort_request", {"abort_all": True})
        assert {status for status, _ in await asyncio.gather(*running)} == {200}
        assert (await client.state())["most_in_flight"] == 2000

    run(test, "--delay", 600)


def test_it_says_how_it_is_used_and_ends_on_a_signal():
    text = subprocess.run([sys.executable, str(PROGRAM), "--help"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"--delay DELAY\s+seconds that each request takes", text)

    async def test(client):
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(10) == -signal.SIGTERM

    run(test)
