"""SGLang's own router in front of servers: what reaches them through it, and what an engine must do besides.

The router is the real one. Most servers are simulated, so that thousands of requests and deaths cost little.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from real_sglang import KEY, MODEL, RealServer, routed, settings, well

from reroll.api import EngineError, GenerationRequest, SamplingParams, WeightBucket
from reroll.placement.local import LocalPlacement
from reroll.serving.sglang.engine import SGLangEngine, SGLangEngineConfig
from reroll.serving.sglang.server import AttachedServer

sys.path.insert(0, str(Path(__file__).parent))

from test_simulated_server import simulated

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

OFTEN = {"health_check_interval_secs": 1, "health_check_timeout_secs": 1, "health_failure_threshold": 2}
"""The router's checks, in seconds instead of minutes."""


@asynccontextmanager
async def engines_behind(urls, router, folder):
    """An engine for each server, loaded; responses come through the router."""
    placement = LocalPlacement()

    def attached(number):
        given = settings(
            placement,
            folder / "log",
            name=f"engine-{number}",
            url=urls[number],
            router=router,
            peers=tuple(url for url in urls if url != urls[number]),
            connections=2048,
            startup_timeout=60.0,
        )
        return SGLangEngine(SGLangEngineConfig(), AttachedServer(given))

    engines = [attached(number) for number in range(len(urls))]
    try:
        for engine in engines:
            await engine._begin()
            await load(engine, 0)
        yield engines
    finally:
        for engine in engines:
            await engine.close()
        await placement.close()


async def load(engine, version, folder=MODEL):
    await engine.stage_weights([WeightBucket(str(folder / "model.safetensors"), ("x",), 1)])
    await engine.commit_weights(version)


@asynccontextmanager
async def simulation(tmp_path, *options, **of_router):
    """Two engines on simulated servers behind a router, the servers' clients, and the router's URL."""
    async with AsyncExitStack() as stack:
        options = (*options, "--architecture", "Qwen3ForCausalLM", "--vocabulary", "300", "--notice-disconnect", "60")
        clients = [await stack.enter_async_context(simulated(*options, SIMULATED_API_KEY=KEY)) for number in range(2)]
        servers = [RealServer(str(client.session._base_url).rstrip("/"), KEY, None, None) for client in clients]
        context = routed(servers, tmp_path, **of_router)
        url = await asyncio.to_thread(context.__enter__)
        stack.callback(context.__exit__, None, None, None)
        engines = await stack.enter_async_context(engines_behind([server.url for server in servers], url, tmp_path))
        yield engines, clients, url


def respond(engine, name, tokens=8):
    params = SamplingParams(max_new_tokens=tokens, seed=2**53 + 1)
    return engine.generate(GenerationRequest(name, [65, 66], params))


def start(engine, count, tokens):
    return [asyncio.ensure_future(respond(engine, f"request-{number}", tokens)) for number in range(count)]


async def in_flight(clients):
    return [(await client.state())["in_flight"] for client in clients]


async def until(holds, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_two_thousand_requests_are_in_flight_and_keep_seed_and_spans(tmp_path):
    async def body():
        async with simulation(tmp_path, "--delay", "5") as (engines, clients, _):
            tasks = start(engines[0], 2000, 8)

            async def all_sent():
                return sum(await in_flight(clients)) == 2000

            await until(all_sent)
            assert min(await in_flight(clients)) > 500
            found = await asyncio.gather(*tasks)
            assert len({tuple(completion.output_ids) for completion in found}) == 1
            assert {span.version for completion in found for span in completion.weight_versions} == {0}

    asyncio.run(body())


def test_a_request_is_ended_wherever_the_router_brought_it(tmp_path):
    """By its own engine alone: the same request may have been made again by another."""

    async def body():
        async with simulation(tmp_path, "--delay", "60") as (engines, clients, _):
            tasks = [start(engine, 4, 900) for engine in engines]

            async def placed():
                return await in_flight(clients) == [4, 4]

            await until(placed)
            for number in range(4):
                await engines[0].abort(f"request-{number}")
            assert {completion.finish_reason for completion in await asyncio.gather(*tasks[0])} == {"abort"}
            assert sum(await in_flight(clients)) == 4
            for task in tasks[1]:
                task.cancel()

            async def idle():
                return await in_flight(clients) == [0, 0]

            await until(idle)

    asyncio.run(body())


@pytest.mark.slow
def test_a_paused_server_is_taken_out_by_the_routers_health_check_and_comes_back(tmp_path):
    async def body():
        options = {**OFTEN, "health_success_threshold": 1}
        async with simulation(tmp_path, **options) as (engines, clients, url):
            await engines[0].pause("retract")

            async def one_is_left():
                return len(await asyncio.to_thread(well, url)) == 1

            await until(one_is_left)
            await asyncio.gather(*start(engines[0], 6, 8))
            assert (await clients[0].state())["in_flight"] == 0
            await engines[0].resume()

            async def both_are_well():
                return len(await asyncio.to_thread(well, url)) == 2

            await until(both_are_well)

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize("retries", [True, False])
def test_what_a_server_had_that_died_is_made_again(tmp_path, retries):
    """By the router, or by the engine where it does not."""

    async def body():
        async with simulation(tmp_path, "--delay", "3", **OFTEN, disable_retries=not retries) as (
            engines,
            clients,
            _,
        ):
            tasks = start(engines[1], 20, 8)

            async def placed():
                return await in_flight(clients) == [10, 10]

            await until(placed)
            clients[0].process.kill()
            found = await asyncio.gather(*tasks)
            assert {completion.finish_reason for completion in found} == {"length"}
            assert "does not answer" in str(await engines[0].lost())
            assert engines[1].server.loss is None

    asyncio.run(body())


@pytest.mark.slow
def test_a_server_that_was_started_again_is_not_believed_until_it_is_loaded(tmp_path):
    async def body():
        async with simulation(tmp_path) as (engines, clients, _):
            stamp = {"new_version": "default", "abort_all_requests": False}
            assert (await clients[0].post("/update_weight_version", stamp, key=KEY))[0] == 200
            found = await asyncio.gather(*start(engines[1], 4, 8))
            assert {span.version for completion in found for span in completion.weight_versions} == {0}

    asyncio.run(body())


@pytest.mark.slow
def test_a_router_that_is_gone_is_named_and_no_server_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("reroll.serving.sglang.client.ROUTER_SECONDS", (0.01, 0.01))

    async def body():
        async with simulation(tmp_path) as (engines, _, url):
            engines[0].client._generate_url = "http://127.0.0.1:9/generate"
            with pytest.raises(EngineError, match=rf"SGLang's router at {url} \(serving.router\) does not answer"):
                await respond(engines[0], "request")
            assert engines[0].server.loss is None

    asyncio.run(body())


@pytest.mark.slow
def test_the_router_wants_the_servers_key(tmp_path):
    async def body():
        async with (
            simulation(tmp_path) as (_, _, url),
            aiohttp.ClientSession(headers={"Authorization": "Bearer wrong"}) as session,
            session.post(f"{url}/generate", json={"input_ids": [1], "sampling_params": {}}) as reply,
        ):
            assert reply.status == 401

    asyncio.run(body())


def test_real_servers_end_what_is_aborted_and_what_nobody_waits_for(sglang_servers, tmp_path):
    async def body(url):
        async with engines_behind([server.url for server in sglang_servers], url, tmp_path) as engines:

            async def running():
                loads = [await engine.client.control("/v1/loads", method="GET") for engine in engines]
                return [found["loads"][0]["num_running_reqs"] for found in loads]

            async def on_both():
                return all(await running())

            async def idle():
                return not any(await running())

            tasks = start(engines[0], 16, 1000)
            await until(on_both)
            for number in range(16):
                await engines[0].abort(f"request-{number}")
            assert "abort" in {completion.finish_reason for completion in await asyncio.gather(*tasks)}
            tasks = start(engines[0], 16, 1000)
            await until(on_both)
            for task in tasks:
                task.cancel()
            await until(idle, 3.0)

    with routed(sglang_servers, tmp_path) as url:
        asyncio.run(body(url))
