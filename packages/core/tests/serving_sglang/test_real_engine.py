"""The engine on a real SGLang server: what it generates, how it takes weights, what is left after a failure."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest
from real_sglang import MODEL, ON_CPU, RealServer, python, servers_of, settings

from reroll.api import EngineError, GenerationRequest, RequestRefused, SamplingParams, VersionSpan, WeightBucket
from reroll.placement.local import LocalPlacement
from reroll.serving.sglang.engine import SGLangEngine, SGLangEngineConfig
from reroll.serving.sglang.server import AttachedServer, LaunchedServer

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROMPT = [305, 72, 101, 108, 108, 111]


def launching(placement, tmp_path, *options):
    arguments = ("--model-path", str(MODEL), "--weight-version", "0", *ON_CPU, *options)
    return settings(placement, tmp_path / "engine.log", python=python(), arguments=arguments)


@asynccontextmanager
async def attached(server: RealServer, tmp_path, key=None):
    """An engine on a running server, not loaded yet."""
    placement = LocalPlacement()
    engine = SGLangEngine(
        SGLangEngineConfig(),
        AttachedServer(settings(placement, tmp_path / "log", url=server.url, key=server.key if key is None else key)),
    )
    try:
        await engine._begin()
        yield engine
    finally:
        await engine.close()
        await placement.close()


def scaled(folder, factor):
    """The model's weights times `factor`, in two files of a new folder."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    tensors = {name: tensor * factor for name, tensor in load_file(MODEL / "model.safetensors").items()}
    names, buckets = list(tensors), []
    for number, part in enumerate((names[:5], names[5:])):
        path = folder / f"bucket-{number:05}.safetensors"
        save_file({name: tensors[name] for name in part}, path)
        buckets.append(WeightBucket(str(path), tuple(part), 1))
    return buckets


async def load(engine, buckets, version, **keywords):
    await engine.stage_weights(buckets)
    return await engine.commit_weights(version, **keywords)


async def respond(engine, number, tokens=16, ids=PROMPT, **sampling):
    params = SamplingParams(max_new_tokens=tokens, seed=number, **sampling)
    return await engine.generate(GenerationRequest(f"request-{number}", list(ids), params))


async def long_ones(engine, first, count=8):
    """Responses, some of which go on until the length limit; the server works on them when this returns."""
    tasks = [asyncio.ensure_future(respond(engine, first + number, 1000, [65 + number, 66])) for number in range(count)]
    while not await running(engine):
        assert not all(task.done() for task in tasks)
    return tasks


async def running(engine):
    """Requests that the server works on."""
    loads = await engine.client.control("/v1/loads", method="GET")
    return loads["loads"][0]["num_running_reqs"]


def test_it_gives_ids_log_probabilities_and_spans_and_refuses_what_would_end_the_server(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            assert not engine.holds_start
            with pytest.raises(EngineError, match="to be loaded first"):
                await engine.weight_version()
            early = asyncio.ensure_future(respond(engine, 1))
            await asyncio.sleep(0)
            await load(engine, scaled(tmp_path / "weights", 1.0), 3)
            assert await engine.weight_version() == 3
            assert (await early).finish_reason == "abort"
            found = await asyncio.gather(*(respond(engine, number) for number in range(32)))
            for completion in found:
                tokens = len(completion.output_ids)
                assert tokens == len(completion.logprobs) > 0
                assert completion.weight_versions == [VersionSpan(3, 0, tokens)]
                assert completion.finish_reason in ("stop", "length")
            greedy = await asyncio.gather(*(respond(engine, number, temperature=0.0) for number in range(3)))
            assert len({tuple(completion.output_ids) for completion in greedy}) == 1
            with pytest.raises(RequestRefused, match="token ids are whole numbers from 0 to 307"):
                await respond(engine, 100, ids=[999_999])
            with pytest.raises(RequestRefused, match="lower max_new_tokens"):
                await respond(engine, 101, tokens=5000)
            assert (await engine.health())["weight_version"] == "3"

    asyncio.run(body())


def test_a_stop_string_ends_a_response_that_keeps_its_tokens(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "weights", 1.0), 0)
            whole = await respond(engine, 1, temperature=0.0, tokens=6)
            text = "".join(chr(token) for token in whole.output_ids[:2] if token < 128)
            stopped = await respond(engine, 2, temperature=0.0, stop=(text[-1],), tokens=6)
            assert stopped.finish_reason == "stop"
            assert whole.output_ids[: len(stopped.output_ids)] == stopped.output_ids

    asyncio.run(body())


def test_new_weights_from_a_folder_reach_responses_in_the_middle(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "old", 1.0), 0)
            old = await engine.weights_digest()
            tasks = await long_ones(engine, 0)
            cost = await load(engine, scaled(tmp_path / "new", 1.3), 1, recompute=True)
            assert cost.pause_seconds > 0
            assert await engine.weights_digest() != old
            found = await asyncio.gather(*tasks)
            met = [[span.version for span in completion.weight_versions] for completion in found]
            assert [0, 1] in met
            assert all(versions in ([0], [0, 1]) for versions in met)
            later = await respond(engine, 50)
            assert [span.version for span in later.weight_versions] == [1]

    asyncio.run(body())


def test_a_load_that_fails_leaves_nothing_running_until_one_succeeds(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "old", 1.0), 0)
            tasks = await long_ones(engine, 0)
            with pytest.raises(EngineError, match="update_weights_from_disk"):
                await load(engine, [WeightBucket(str(tmp_path / "absent" / "x.safetensors"), ("x",), 1)], 1)
            found = await asyncio.gather(*tasks)
            assert {span.version for completion in found for span in completion.weight_versions} <= {0}
            assert "abort" in {completion.finish_reason for completion in found}
            with pytest.raises(EngineError, match="holds no version"):
                await engine.weight_version()
            late = asyncio.ensure_future(respond(engine, 60))
            await asyncio.sleep(0)
            await engine.resume()
            assert (await late).finish_reason == "abort"
            await load(engine, scaled(tmp_path / "new", 1.1), 2)
            assert [span.version for span in (await respond(engine, 61)).weight_versions] == [2]

    asyncio.run(body())


def test_requests_end_with_what_they_have_when_they_are_aborted_and_leave_when_nobody_waits(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "weights", 1.0), 0)
            tasks = await long_ones(engine, 0)
            for number in range(len(tasks)):
                await engine.abort(f"request-{number}")
            found = await asyncio.gather(*tasks)
            assert "abort" in {completion.finish_reason for completion in found}
            assert all(len(completion.output_ids) == len(completion.logprobs) for completion in found)
            left = await long_ones(engine, 10)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for _ in range(100):
                if not await running(engine):
                    break
                await asyncio.sleep(0.1)
            assert not await running(engine)

    asyncio.run(body())


def test_a_paused_server_is_freed_of_what_another_run_left(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "weights", 1.0), 0)
            await engine.pause("retract")
            await engine.client.control("/begin_weight_update", {})
        async with attached(sglang_server, tmp_path) as engine:
            await load(engine, scaled(tmp_path / "more", 1.0), 4)
            assert [span.version for span in (await respond(engine, 1)).weight_versions] == [4]

    asyncio.run(body())


def test_a_wrong_key_is_refused_by_name(sglang_server, tmp_path):
    async def body():
        async with attached(sglang_server, tmp_path, key="wrong"):
            pass

    with pytest.raises(EngineError, match="refuses the key that the variable of serving.api_key_env holds"):
        asyncio.run(body())
    assert sglang_server.status("/model_info", key="wrong") == 401
    assert sglang_server.status("/model_info") == 200


def test_servers_listen_on_loopback_alone_and_no_key_can_be_seen(sglang_servers):
    for server in sglang_servers:
        process = psutil.Process(server.launcher._process.pid)
        family = [process, *process.children(recursive=True)]
        assert len(family) > 2
        listening = [
            connection.laddr.ip
            for member in family
            for connection in member.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) <= {"127.0.0.1", "::1"}
        for member in family:
            assert server.key not in " ".join(member.cmdline())
        assert server.key not in server.log.read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_of_two_ranks_takes_the_same_weights_from_a_group_and_from_disk(tmp_path):
    """A group of three: rank 0, which has the weights, and the server's two. SGLang binds each rank to cores of its
    own, which are named here since a small machine has too few memory nodes for it to choose."""
    from safetensors.torch import load_file

    from reroll.models.process_groups import Member, flatten, listen, specs

    async def body():
        placement = LocalPlacement()
        given = launching(placement, tmp_path, "--dtype", "float32", "--tp-size", "2")
        environment = {**given.environment, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
        given = replace(given, ranks=2, environment=environment, startup_timeout=700.0)
        engine = SGLangEngine(SGLangEngineConfig(), LaunchedServer(given))
        try:
            await engine._begin()
            assert engine.weight_ranks == 2
            before, answer = await engine.weights_digest(), await respond(engine, 1, temperature=0.0)
            buckets = scaled(tmp_path / "weights", 1.3)
            await load(engine, buckets, 1)
            from_disk, wanted = await engine.weights_digest(), await respond(engine, 2, temperature=0.0)
            assert from_disk != before
            await load(engine, scaled(tmp_path / "old", 1.0), 2)
            assert await engine.weights_digest() == before

            group, store = listen("weights", 1 + engine.weight_ranks, "gloo", 60.0)
            joining = asyncio.create_task(engine.join_weight_group(group))
            member = await asyncio.to_thread(Member, group, 0, store)
            await joining
            tensors = {}
            for bucket in buckets:
                tensors |= load_file(bucket.path)
            parts = [dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:])]

            class Source:
                """What a trainer sends, bucket by bucket."""

                version, flattened, buckets = 3, True, [specs(part) for part in parts]

                def __init__(self):
                    self.group = group

                async def send(self, number):
                    flat = flatten(list(parts[number].values()))
                    await asyncio.to_thread(member.broadcast, [flat])

            await engine.stage_stream(Source())
            await engine.commit_weights(3)
            assert await engine.weights_digest() == from_disk
            after = await respond(engine, 3, temperature=0.0)
            assert after.output_ids == wanted.output_ids
            assert after.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
            assert after.logprobs != answer.logprobs
            assert [span.version for span in after.weight_versions] == [3]
            leaving = asyncio.create_task(engine.leave_weight_group("weights"))
            await asyncio.to_thread(member.leave)
            await leaving
            family = psutil.Process().children(recursive=True)
            listening = {
                connection.laddr.ip
                for process in family
                for connection in process.net_connections()
                if connection.status == psutil.CONN_LISTEN
            }
            assert listening and listening <= {"127.0.0.1", "::1"}
        finally:
            await engine.close()
            await placement.close()

    asyncio.run(body())


@pytest.mark.slow
def test_a_launched_server_that_is_killed_says_so_and_comes_back(tmp_path):
    async def body():
        placement = LocalPlacement()
        given = launching(placement, tmp_path, "--dtype", "float32")
        engine = SGLangEngine(SGLangEngineConfig(), LaunchedServer(given))
        await engine._begin()
        try:
            assert await engine.weight_version() == 0
            lost = asyncio.create_task(engine.lost())
            tasks = await long_ones(engine, 0)
            (pid,) = servers_of(os.getpid())
            os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*tasks, return_exceptions=True)
            assert "SIGKILL" in str(await lost)
            await engine.recover()
            with pytest.raises(EngineError, match="holds no version"):
                await engine.weight_version()
            await load(engine, scaled(tmp_path / "weights", 1.0), 7)
            assert [span.version for span in (await respond(engine, 1)).weight_versions] == [7]
        finally:
            await engine.close()
            await placement.close()

    asyncio.run(body())
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]


def test_a_server_that_cannot_start_says_why(tmp_path):
    async def start(**changes):
        placement = LocalPlacement()
        given = settings(placement, tmp_path / "engine.log", **{"python": python(), **changes})
        server = LaunchedServer(given)
        try:
            await server.start()
        finally:
            await server.close()
            await placement.close()

    with pytest.raises(EngineError, match="set serving.python"):
        asyncio.run(start(python="/nowhere/python"))
    with pytest.raises(EngineError, match="unrecognized arguments"):
        asyncio.run(start(arguments=("--model-path", str(MODEL), "--no-such-option")))
    with pytest.raises(EngineError, match=r"not ready after 0\.5 s \(serving\.startup_timeout\)"):
        asyncio.run(start(startup_timeout=0.5))
