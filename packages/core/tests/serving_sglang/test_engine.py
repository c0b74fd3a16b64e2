"""What an engine on an SGLang server does with weights, failures and its server's end."""

import asyncio

import pytest
from simulated_engine import Stream, bucket, engine_of, load, request, run, simulated, start

from reroll.api import EngineError, EngineUnavailable, RequestRefused, VersionSpan
from reroll.serving.config import ServingSection
from reroll.serving.sglang import engine as engine_module
from reroll.serving.sglang import server as server_module
from reroll.serving.sglang.engine import SGLangEngine
from reroll.serving.sglang.versions import VersionNames

LONG = ("--delay", 600)
SLOW = ("--delay", 60)
DISK = [
    "/pause_generation",
    "/flush_cache?timeout=0",
    "/update_weights_from_disk",
    "/update_weight_version",
    "/continue_generation",
]
STREAM = [
    "/pause_generation",
    "/flush_cache?timeout=0",
    "/begin_weight_update",
    "/update_weights_from_distributed",
    "/update_weights_from_distributed",
    "/end_weight_update",
    "/update_weight_version",
    "/continue_generation",
]
LOADS = {"disk": DISK, "stream": STREAM}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(engine_module, "PARTIAL_SECONDS", 0.2)


async def stage(engine, how, folder, version):
    if how == "disk":
        await engine.stage_weights([bucket(folder / f"weights-{version}")])
    else:
        await engine.stage_stream(Stream(version))


async def commit(engine, how, folder, version):
    await stage(engine, how, folder, version)
    return await engine.commit_weights(version)


async def calls_since(server, before):
    return (await server.state())["calls"][before:]


def test_a_commit_from_a_folder_is_the_sequence_that_sglang_asks_for(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            before = len((await server.state())["calls"])
            await commit(engine, "disk", tmp_path, 2)
            found = await calls_since(server, before)
            assert [path for path, _ in found] == DISK
            told = dict(map(tuple, found))
            assert told["/pause_generation"] == {"mode": "retract"}
            assert told["/update_weights_from_disk"] == {
                "model_path": str(tmp_path / "weights-2"),
                "load_format": "auto",
                "flush_cache": False,
            }
            assert told["/update_weight_version"] == {"new_version": "2", "abort_all_requests": False}
            assert await engine.weight_version() == 2

    run(body())


def test_a_commit_from_a_stream_is_the_sequence_that_sglang_asks_for(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            await engine.join_weight_group(Stream.group)
            before = len((await server.state())["calls"])
            stream = Stream(2)
            await engine.stage_stream(stream)
            await engine.commit_weights(2)
            found = await calls_since(server, before)
            assert [path for path, _ in found] == STREAM
            assert stream.sent == [0, 1]
            assert found[3][1] == {
                "names": ["a", "b"],
                "dtypes": ["float32", "bfloat16"],
                "shapes": [[2, 3], [4]],
                "group_name": "group-1",
                "flush_cache": False,
                "abort_all_requests": False,
                "load_format": "flattened_bucket",
            }
            assert found[6][1] == {"new_version": "2", "abort_all_requests": False}
            assert (await server.state())["loaded"][-2:] == [["a", "b"], ["c"]]
            await engine.leave_weight_group("group-1")
            assert (await server.state())["groups"] == []

    run(body())


def test_responses_go_on_under_new_weights_with_two_spans(tmp_path):
    async def body():
        async with simulated(*SLOW) as server, engine_of(server.url, tmp_path) as engine:
            (task,) = start(engine, request("a", tokens=900))
            await server.until(lambda state: max(state["produced"].values(), default=0) > 0)
            await commit(engine, "disk", tmp_path, 2)
            (at,) = (await server.state())["produced"].values()
            await server.until(lambda state: max(state["produced"].values()) > at)
            await engine.abort("a")
            spans = (await task).weight_versions
            assert [span.version for span in spans] == [1, 2]

    run(body())


@pytest.mark.parametrize("fault", ["status", "drop", "hang"])
@pytest.mark.parametrize("how", ["disk", "stream"])
def test_a_commit_that_fails_at_any_step_never_serves_mixed_weights_and_the_next_one_heals(how, fault, tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            await engine.join_weight_group(Stream.group)
            for step in range(len(LOADS[how])):
                await commit_fails(server, engine, how, step, fault, tmp_path)

    run(body())


async def commit_fails(server, engine, how, step, fault, folder):
    sequence = LOADS[how]
    path, number = sequence[step].partition("?")[0], sequence[:step].count(sequence[step])
    loading = sequence.index("/begin_weight_update" if how == "stream" else "/update_weights_from_disk")
    stamped = sequence.index("/update_weight_version")
    version = 1 + 2 * step
    await commit(engine, how, folder, version)
    running = start(engine, *(request(f"{step}-{number}") for number in range(3)))
    await server.in_flight(3)
    await server.order(path, fault, skip=number, after=fault == "drop")
    await stage(engine, how, folder, version + 1)
    committing = asyncio.ensure_future(engine.commit_weights(version + 1))
    if fault == "hang":
        await server.until(lambda state: not state["faults"])
        committing.cancel()  # as a publication that takes too long is
    (raised,) = await asyncio.gather(committing, return_exceptions=True)
    kinds = {"status": EngineError, "drop": EngineUnavailable, "hang": asyncio.CancelledError}
    assert isinstance(raised, kinds[fault])
    if loading <= step <= stamped:
        with pytest.raises(EngineError, match="holds no version"):
            await engine.weight_version()
        late = start(engine, request(f"{step}-late"))
        await asyncio.sleep(0)
        await engine.resume()
        found = await asyncio.gather(*running, *late)
        assert {completion.finish_reason for completion in found} == {"abort"}
        assert {span.version for one in found for span in one.weight_versions} <= {version}
        state = await server.state()
        assert (state["in_flight"], state["paused"]) == (0, "retract")
    else:
        # Sound: of the old version, or of the new one.
        await engine.resume()
        assert await engine.weight_version() == version + (step > stamped)
        await server.until(lambda state: state["paused"] is None)
        assert not any(task.done() for task in running)
        await engine.abort(None)
        await asyncio.gather(*running)


def test_a_request_that_the_paused_server_had_not_begun_is_let_go_of_as_well(tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            await server.order("/flush_cache", "delay", seconds=0.3)
            await stage(engine, "disk", tmp_path, 2)
            await server.order("/update_weights_from_disk", "status")
            committing = asyncio.ensure_future(engine.commit_weights(2))
            await server.until(lambda state: state["paused"])
            (missed,) = start(engine, request("missed"))  # an abort passes it by
            await server.in_flight(1)
            with pytest.raises(EngineError, match="simulated"):
                await committing
            await engine.resume()
            found = await missed
            assert (found.finish_reason, found.output_ids) == ("abort", [])

    run(body())


def test_what_waits_in_doubt_is_served_by_the_next_load_or_let_go_by_the_next_staging(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path, loaded=False) as engine:
            assert not engine.holds_start
            (early,) = start(engine, request("early"))
            await asyncio.sleep(0)
            await stage(engine, "disk", tmp_path, 2)
            (late,) = start(engine, request("late"))
            assert (await early).finish_reason == "abort"
            await engine.commit_weights(2)
            assert (await late).weight_versions == [VersionSpan(2, 0, 8)]
            assert set((await server.state())["generated"].values()) == {1}

    run(body())


def test_what_an_attempt_staged_that_never_committed_is_replaced(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            await stage(engine, "disk", tmp_path, 2)
            await engine.stage_weights([bucket(tmp_path / "weights-3", "x")])
            await engine.stage_weights([bucket(tmp_path / "weights-3", "y")])
            await engine.commit_weights(3)
            assert (await server.state())["loaded"][-1] == str(tmp_path / "weights-3")
            await engine.join_weight_group(Stream.group)
            await stage(engine, "disk", tmp_path, 4)
            await commit(engine, "stream", tmp_path, 5)
            assert (await server.state())["loaded"][-1] == ["c"]
            with pytest.raises(EngineError, match="nothing was staged"):
                await engine.commit_weights(6)
            assert await engine.weight_version() == 5
            scattered = [bucket(tmp_path / "one"), bucket(tmp_path / "two")]
            await engine.stage_weights(scattered)
            with pytest.raises(EngineError, match="one folder, but the weights stand in .*one.*two"):
                await engine.commit_weights(6)

    run(body())


def test_an_update_that_was_not_ended_is_ended_before_the_next_one(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            await engine.join_weight_group(Stream.group)
            await server.order("/update_weights_from_distributed", "status", skip=1)
            with pytest.raises(EngineError, match="simulated"):
                await commit(engine, "stream", tmp_path, 2)
            before = len((await server.state())["calls"])
            await commit(engine, "stream", tmp_path, 3)
            paths = [path for path, _ in await calls_since(server, before) if path != "/abort_request"]
            assert paths == [*STREAM[:3], "/end_weight_update", *STREAM[2:]]

    run(body())


def test_a_flush_with_requests_running_retracts_them(tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            before = len((await server.state())["calls"])
            await engine.flush_cache()
            assert [path for path, _ in await calls_since(server, before)] == ["/flush_cache?timeout=0"]
            running = start(engine, request("a"))
            await server.in_flight(1)
            await engine.flush_cache()
            state = await server.state()
            assert (state["paused"], state["in_flight"]) == (None, 1)
            await server.order("/flush_cache", "status", times=2)
            with pytest.raises(EngineError, match="flush_cache"):
                await engine.flush_cache()
            assert (await server.state())["paused"] is None
            await engine.abort(None)
            await asyncio.gather(*running)

    run(body())


def test_a_server_that_is_attached_to_is_freed_of_what_another_run_left(tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            left = start(engine, request("left"))
            await server.in_flight(1)
            await engine.pause("retract")
            await engine.client.control("/begin_weight_update", {})
            async with engine_of(server.url, tmp_path, loaded=False) as other:
                state = await server.state()
                assert (state["paused"], state["session"], state["in_flight"]) == ("retract", False, 0)
                with pytest.raises(EngineError, match="to be loaded first"):
                    await other.weight_version()
            await asyncio.gather(*left)

    run(body())


def test_a_request_that_would_end_the_server_never_reaches_it(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            with pytest.raises(RequestRefused, match="ids go up to 63"):
                await engine.generate(request("a", stop_token_ids=(64,)))
            assert "/generate" not in (await server.state())["counts"]

    run(body())


def test_a_version_that_this_run_never_gave_is_none(tmp_path):
    async def body():
        async with simulated() as server, engine_of(server.url, tmp_path) as engine:
            await engine.client.control("/update_weight_version", {"new_version": "default"})
            with pytest.raises(EngineError, match="'default' is none that this run loaded"):
                await engine.weight_version()
            with pytest.raises(EngineError, match="'default' is none that this run loaded"):
                await engine.generate(request("a"))
            assert len(await engine.weights_digest()) == 64

    run(body())


@pytest.mark.parametrize("fault", ["status", "hang", "drop"])
def test_a_server_that_is_not_well_is_lost_and_its_requests_are_told(fault, tmp_path):
    async def body():
        more = {"health_interval": 0.05, "health_timeout": 1.0}
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path, **more) as engine:
            lost = asyncio.ensure_future(engine.lost())
            running = start(engine, *(request(f"{number}") for number in range(3)))
            await server.in_flight(3)
            assert not lost.done()
            await server.order("/health", fault, times=100)
            assert isinstance(await lost, EngineUnavailable)
            found = await asyncio.gather(*running, return_exceptions=True)
            assert {type(error) for error in found} == {EngineUnavailable}
            with pytest.raises(EngineUnavailable):
                await engine.generate(request("late"))

    run(body())


def test_health_is_not_asked_of_a_paused_server(tmp_path):
    async def body():
        more = {"health_interval": 0.02, "health_timeout": 1.0}
        options = ("--health-timeout", 0)  # which refuses at once while it is paused
        async with simulated(*options) as server, engine_of(server.url, tmp_path, **more) as engine:
            await server.until(lambda state: state["counts"].get("/health", 0) > 1)
            await engine.pause("retract")
            before = (await server.state())["counts"]["/health"]
            await asyncio.sleep(0.2)
            assert (await server.state())["counts"]["/health"] == before
            assert (await engine.health())["paused"]
            await engine.resume()
            await server.until(lambda state: state["counts"]["/health"] > before + 1)
            assert engine.server.loss is None

    run(body())


def test_a_server_that_dies_is_lost_and_one_in_its_place_is_loaded_before_it_is_used(tmp_path):
    async def body():
        async with simulated(*LONG) as first, engine_of(first.url, tmp_path, health_interval=0.05) as engine:
            running = start(engine, *(request(f"{number}") for number in range(3)))
            await first.in_flight(3)
            first.kill()
            found = await asyncio.gather(*running, return_exceptions=True)
            assert {type(error) for error in found} == {EngineUnavailable}
            assert "does not answer" in str(await engine.lost())
            async with simulated(port=first.url.rpartition(":")[2]) as second:
                await engine.recover()
                lost = asyncio.ensure_future(engine.lost())
                with pytest.raises(EngineError, match="holds no version"):
                    await engine.weight_version()
                (early,) = start(engine, request("early"))
                await asyncio.sleep(0)
                await load(engine, tmp_path, 7)
                assert (await early).finish_reason == "abort"
                assert (await engine.generate(request("b"))).weight_versions == [VersionSpan(7, 0, 8)]
                assert not lost.done()
                second.kill()
                assert isinstance(await lost, EngineUnavailable)

    run(body())


def test_a_server_that_dies_in_the_middle_of_a_load_is_unavailable(tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            waiting = start(engine, request("a"))
            await server.in_flight(1)
            await server.order("/update_weights_from_disk", "die")
            with pytest.raises(EngineUnavailable, match="does not answer"):
                await commit(engine, "disk", tmp_path, 2)
            (found,) = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(found, EngineUnavailable)

    run(body())


def test_being_started_again_ends_what_still_waits_here(tmp_path):
    async def body():
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path) as engine:
            lost = asyncio.ensure_future(engine.lost())
            running = start(engine, *(request(f"{number}") for number in range(3)))
            await server.in_flight(3)
            await engine.recover()
            assert "started again" in str(await lost)
            found = await asyncio.gather(*running, return_exceptions=True)
            assert {type(error) for error in found} == {EngineUnavailable}

    run(body())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "hang"}, r"does not answer.*waited 0\.3 s \(serving\.startup_timeout\)"),
        ({"kind": "drop"}, r"does not answer.*waited 0\.3 s \(serving\.startup_timeout\)"),
        ({"kind": "status", "status": 404}, "does not answer as SGLang does: 404"),
        ({"kind": "status", "status": 401}, r"wants a key: set serving\.api_key_env"),
    ],
)
def test_a_server_that_cannot_be_attached_to_says_why(fault, message, tmp_path):
    async def body():
        async with simulated() as server:
            await server.order("/model_info", times=1000, **fault)
            with pytest.raises(EngineError, match=message):
                async with engine_of(server.url, tmp_path, startup_timeout=0.3):
                    pass

    run(body())


def test_a_wrong_key_is_told_apart_from_none(tmp_path):
    async def body():
        async with simulated(SIMULATED_API_KEY="right") as server:
            with pytest.raises(EngineError, match=r"refuses the key that the variable of serving\.api_key_env holds"):
                async with engine_of(server.url, tmp_path, key="wrong"):
                    pass

    run(body())


def test_a_server_that_is_silent_for_long_is_told_of_once(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "SILENT_SECONDS", 0.1)
    told = []

    async def body():
        async with simulated() as server:
            await server.order("/model_info", "drop", times=8)
            async with engine_of(server.url, tmp_path, warn=told.append, startup_timeout=30.0):
                pass

    run(body())
    (message,) = told
    assert "does not answer" in message and message.endswith("waiting up to 30 s (serving.startup_timeout)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layers", 3), r"another model than model\.path: it has 3 layers, and that has 2; start it with"),
        (("--layers", 1), "it has 1 layers"),
        (("--architecture", "Other"), "it is Other, and that is SimulatedForCausalLM"),
    ],
)
def test_a_server_with_another_model_is_not_attached_to(options, message, tmp_path):
    async def body():
        async with simulated(*options) as server:
            with pytest.raises(EngineError, match=message):
                async with engine_of(server.url, tmp_path):
                    pass

    run(body())


def test_weights_that_another_run_loads_into_the_server_are_not_taken_for_ones_own(tmp_path):
    async def body():
        async with (
            simulated() as server,
            engine_of(server.url, tmp_path, names=VersionNames("ours")) as engine,
            engine_of(server.url, tmp_path, names=VersionNames("theirs")) as other,
        ):
            await load(engine, tmp_path, 1)
            assert (await engine.generate(request("a"))).weight_versions == [VersionSpan(1, 0, 8)]
            await load(other, tmp_path, 1)
            for asked in (engine.generate(request("b")), engine.weight_version()):
                with pytest.raises(EngineError, match=r"'theirs-1' is none that this run loaded; does another run"):
                    await asked
            assert await other.weight_version() == 1

    run(body())


@pytest.mark.parametrize("key", ["secret-1234\n", "a\nb-secret-1234", "secr\u00e9t-1234"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key, monkeypatch):
    monkeypatch.setenv("KEY_OF_A_SERVER", key)
    section = ServingSection(urls=("http://a:1",), api_key_env="KEY_OF_A_SERVER")
    with pytest.raises(EngineError, match="KEY_OF_A_SERVER, which holds what no header can carry") as found:
        server_module._key(section)
    assert "1234" not in str(found.value)


@pytest.mark.slow
def test_two_thousand_requests_are_in_flight_at_once_and_each_has_its_own_answer(tmp_path):
    async def body():
        more = {"connections": 2048}
        async with simulated(*LONG) as server, engine_of(server.url, tmp_path, **more) as engine:
            wanted = [request(f"{number}", seed=number, tokens=4) for number in range(2000)]
            tasks = start(engine, *wanted)
            await server.in_flight(2000)
            await commit(engine, "disk", tmp_path, 2)
            assert (await server.state())["in_flight"] == 2000
            await engine.abort(None)
            found = await asyncio.gather(*tasks)
            assert [(one.request_id, one.seed) for one in found] == [
                (one.request_id, one.sampling.seed) for one in wanted
            ]
            assert {one.finish_reason for one in found} == {"abort"}
            assert (await server.state())["most_in_flight"] == 2000

    run(body(), seconds=240)


def test_a_missing_client_library_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setattr("reroll.serving.sglang.engine.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"needs aiohttp, orjson: pip install 'reroll\[sglang\]'"):
        SGLangEngine.worker_specs(None, None)
