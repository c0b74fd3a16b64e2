"""An engine on an SGLang server that serves what the server has loaded, where nothing is published."""

import asyncio

import pytest
from simulated_engine import engine_of, load, request, run, simulated, start

from reroll.api import EngineError
from reroll.serving.sglang.versions import VersionNames, trained


def test_requests_wait_until_it_is_said_that_the_weights_are_kept(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path, loaded=False, version=0) as engine:
            assert not engine.holds_start
            waiting = start(engine, request("a"))
            with pytest.raises(EngineError, match="holds no version as a whole"):
                await engine.weight_version()
            await asyncio.sleep(0)
            assert not waiting[0].done()
            before = len((await server.state())["calls"])
            await engine.keep_weights()
            completion = await waiting[0]
            assert {span.version for span in completion.weight_versions} == {0}
            assert len(completion.output_ids) == 8
            assert await engine.weight_version() == 0
            found = (await server.state())["calls"][before:]
            told = dict(map(tuple, found))
            assert told["/update_weight_version"] == {"new_version": "0", "abort_all_requests": False}
            assert "/update_weights_from_disk" not in told
            names = [path for path, _ in found]
            assert names.index("/update_weight_version") < names.index("/continue_generation")

    run(body())


@pytest.mark.parametrize(
    ("path", "fault"),
    [("/model_info", "status"), ("/update_weight_version", "status"), ("/update_weight_version", "drop")],
)
def test_while_it_cannot_be_said_nothing_is_served(path, fault, tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path, loaded=False, version=0) as engine:
            waiting = start(engine, request("a"))
            await server.order(path, fault)
            with pytest.raises(EngineError):
                await engine.keep_weights()
            assert not waiting[0].done()
            with pytest.raises(EngineError, match="holds no version as a whole"):
                await engine.weight_version()
            await engine.keep_weights()
            assert {span.version for span in (await waiting[0]).weight_versions} == {0}

    run(body())


def test_a_server_that_another_run_has_trained_is_refused(tmp_path):
    async def body():
        async with simulated() as server:
            names = VersionNames("0123abcd")
            async with engine_of(server.url, tmp_path, loaded=False, names=names) as engine:
                await load(engine, tmp_path, 3)
            async with engine_of(server.url, tmp_path, loaded=False, version=0) as engine:
                waiting = start(engine, request("a"))
                with pytest.raises(EngineError, match="holds the weights of version 3 that a training run has loaded"):
                    await engine.keep_weights()
                assert not waiting[0].done()
                waiting[0].cancel()

    run(body())


def test_what_another_generation_kept_is_kept_again(tmp_path):
    async def body():
        async with simulated() as server:
            for name in ("0123abcd", "4567abcd"):
                settings = {"loaded": False, "version": 0, "names": VersionNames(name)}
                async with engine_of(server.url, tmp_path, **settings) as engine:
                    await engine.keep_weights()
                    (answer,) = start(engine, request("a"))
                    assert {span.version for span in (await answer).weight_versions} == {0}

    run(body())


@pytest.mark.parametrize(
    ("text", "version"),
    [("default", None), ("0", None), ("0123abcd-0", None), ("0123abcd-12", 12), ("model-3", None), (None, None)],
)
def test_what_a_run_has_trained_is_told_by_its_name(text, version):
    assert trained(text) == version


def test_a_server_that_comes_back_serves_what_it_loads(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path, loaded=False, version=0) as engine:
            await engine.keep_weights()
            await engine.recover()
            with pytest.raises(EngineError, match="holds no version as a whole"):
                await engine.weight_version()
            (waiting,) = start(engine, request("a"))
            await engine.keep_weights()
            assert {span.version for span in (await waiting).weight_versions} == {0}

    run(body())
