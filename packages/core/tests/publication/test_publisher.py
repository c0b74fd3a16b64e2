"""What holds of every mode, whatever fails: whole engines in routing, an open gate, a transport that has finished."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.api import EngineError, PluginError, RerollError, WorkerDied
from reroll.publication import fleet as publisher

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import MODES, NEW, OLD, STAGES, now, places, request, run, settle, versions_of

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
PLACES = places(STAGES)


def reached(mode, place):
    """Whether the mode comes by there at all."""
    return not (mode.name == "refresh" and place[0] == "flush")


@every_mode
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_publications_follow_each_other(mode, engines):
    async def scenario(setting):
        for version in (1, 2, 3):
            await setting.publish(version)
            assert setting.versions == [version] * engines
            assert await setting.serves() == [version]
        assert (setting.transport.begun, setting.transport.finished) == (3, 3)
        assert setting.warnings == []

    run(scenario, mode=mode, engines=engines)


@every_mode
def test_the_report_counts_the_requests_that_ran_when_it_began(mode):
    async def scenario(setting):
        groups = [asyncio.create_task(setting.group(name)) for name in "abc"]
        await settle()
        assert (await setting.publish(1)).in_flight == 6
        await asyncio.gather(*groups)
        assert (await setting.publish(2)).in_flight == 0

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_a_single_failure_is_tried_again_and_said(mode, place):
    async def scenario(setting):
        groups = [asyncio.create_task(setting.group(name, tokens=5)) for name in "abc"]
        await settle()
        # The first question for the version is the publisher's own, before the mode begins.
        setting.fails_once(place, after=1 if place[0] == "weight_version" else 0)
        report = await setting.publish(NEW)
        assert setting.versions == [NEW, NEW]
        assert report.attempts == (2 if reached(mode, place) else 1)
        assert len(setting.warnings) == report.attempts - 1
        for warning in setting.warnings:
            assert "publication of version 7 failed and is tried once more: no room for the weights" in warning
        await setting.check()
        assert setting.router.evicted == []
        for group in groups:
            versions = versions_of(await group)
            assert len(versions) == 1 or not mode.homogeneous_groups
        assert await setting.serves() == [NEW]

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_a_second_failure_is_raised_itself_and_says_the_first(mode, place):
    async def scenario(setting):
        first, second = EngineError("no room for the weights"), EngineError("still no room")
        after = [None] if place[0] == "weight_version" else []
        # An engine that says its version when it is examined: one that never does is tested below.
        between = [None] if place[0] in ("weight_version", "flush") else []
        setting.fail[place] = iter([*after, first, *between, second])
        if not reached(mode, place):
            return
        with pytest.raises(EngineError) as caught:
            await setting.publish(NEW)
        assert caught.value is second
        assert second.__notes__ == ["the attempt before had failed: no room for the weights"]
        assert setting.transport.finished == 2
        assert len(setting.warnings) == 1
        await setting.check()
        await setting.serves()

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_a_publication_after_a_failed_one_succeeds(mode, place):
    async def scenario(setting):
        setting.fails_always(place)
        if reached(mode, place):
            with pytest.raises(EngineError):
                await setting.publish(NEW)
        setting.fail.clear()
        report = await setting.publish(8)
        assert (setting.versions, report.attempts) == ([8, 8], 1)
        await setting.check(old=8)
        assert await setting.serves() == [8]

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("of", ["first", "second"])
def test_a_failure_to_commit_leaves_engines_on_old_or_new_weights_and_all_in_routing(mode, of):
    async def scenario(setting):
        setting.fails_always(("commit", of))
        with pytest.raises(EngineError):
            await setting.publish(NEW)
        assert dict(zip(("first", "second"), setting.versions, strict=True))[of] == OLD
        await setting.check()

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("of", ["first", "second"])
@pytest.mark.parametrize("answer", ["another version", "an error", "silence"])
def test_an_engine_in_doubt_is_out_of_routing_until_it_was_loaded(mode, of, answer):
    async def scenario(setting):
        engine = next(engine for engine in setting.engines if engine.address == of)
        other = next(engine for engine in setting.engines if engine.address != of)

        async def groups_during_the_second_attempt():
            while setting.transport.begun < 2:
                await asyncio.sleep(0.1)
            assert setting.router.out == {of}
            engine.claims = None
            setting.hold.clear()
            setting.fail.clear()
            if mode.name != "barrier":
                group = asyncio.create_task(setting.group("meanwhile"))
                await settle()
                assert (engine.running, other.running) == (0, 2)
                await group

        watching = asyncio.create_task(groups_during_the_second_attempt())
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.fails_once(("stage", of))
        if answer == "another version":
            engine.claims = 99
        elif answer == "an error":
            setting.fails_always(("weight_version", of))
        else:
            setting.hangs(("weight_version", of))
        report = await publishing
        await watching
        assert report.attempts == 2
        assert setting.router.evicted == [of]
        assert f"Until it succeeds, no requests go to {of}." in setting.warnings[0]
        await setting.check()
        assert await setting.serves() == [NEW]

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("engines", [1, 2])
def test_conversations_that_no_engine_can_go_on_with_do_not_keep_engines_from_being_loaded(mode, engines):
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", turns=4, siblings=4))
        await settle()
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        for engine in setting.engines:
            engine.claims = 99
        setting.fails_once(("stage", "first"))
        while setting.transport.begun < 2:
            await asyncio.sleep(0.1)
        assert len(setting.router.out) == engines
        for engine in setting.engines:
            engine.claims = None
        report = await publishing
        assert report.seconds < 20
        await setting.check()
        await inside

    run(scenario, mode=mode, engines=engines)


@every_mode
def test_an_engine_that_stays_in_doubt_is_out_of_routing_also_after_the_failure(mode):
    async def scenario(setting):
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.fails_always(("weight_version", "second"), EngineError("the connection was lost"))
        with pytest.raises(EngineError, match="connection was lost"):
            await publishing
        await setting.check(doubtful=["second"])
        await setting.serves()
        assert setting.engines[1].cached is None, "the group was the first one's"
        setting.fail.clear()
        await setting.publish(8)
        await setting.check(old=8)

    run(scenario, mode=mode)


@every_mode
def test_an_engine_in_doubt_returns_by_a_load_and_not_by_an_answer_with_old_weights(mode):
    async def scenario(setting):
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.engines[0].claims = 99
        setting.fails_once(("stage", "first"))
        while setting.transport.begun < 2:
            await asyncio.sleep(0.1)
        setting.engines[0].claims = None
        setting.fails_once(("stage", "first"))
        with pytest.raises(EngineError):
            await publishing
        assert setting.engines[0].version == OLD
        await setting.check(doubtful=["first"])

    run(scenario, mode=mode)


@every_mode
def test_an_engine_with_new_weights_whose_cache_cannot_be_dropped_is_in_doubt(mode):
    async def scenario(setting):
        await setting.group("before", siblings=4)
        setting.fails_always(("flush", "second"))
        setting.fails_always(("committed", "second"))
        with pytest.raises(EngineError):
            await setting.publish(NEW)
        assert setting.engines[1].version == NEW
        await setting.check(doubtful=["second"])

    run(scenario, mode=mode)


@every_mode
def test_a_cache_of_old_weights_is_not_used_under_new_ones_after_a_failure(mode):
    async def scenario(setting):
        await asyncio.gather(setting.group("a"), setting.group("b"))
        for of in ("first", "second"):
            setting.fail["committed", of] = iter([EngineError("the answer was lost")] * 2)
        with pytest.raises(EngineError):
            await setting.publish(NEW)
        assert NEW in setting.versions
        await asyncio.gather(setting.group("c"), setting.group("d"))

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_dies_ends_the_publication_at_once(mode, stage):
    async def scenario(setting):
        place = (stage, None if stage in ("begin", "finish") else "second")
        if not reached(mode, place):
            return
        error = WorkerDied("engine-1", "was killed by SIGKILL")
        setting.fails_once(place, error)
        with pytest.raises(WorkerDied) as caught:
            await setting.publish(NEW)
        assert caught.value is error
        assert setting.transport.begun == (0 if stage == "weight_version" else 1)
        assert setting.warnings == []
        await setting.check()

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_a_publication_over_its_time_names_the_setting_and_leaves_silent_engines_out(mode, place):
    async def scenario(setting):
        if not reached(mode, place):
            return
        setting.hangs(place)
        # A silent engine, or a transport that does not finish, ends an attempt; where everything waits, time does.
        text = r"version 7 took longer than 9 s; raise serving.publication_timeout"
        with pytest.raises(RerollError, match=text):
            await setting.publish(NEW)
        assert setting.warnings == []
        silent = place[0] == "weight_version" or (place[0] == "flush" and mode.name != "refresh")
        await setting.check(doubtful=[place[1]] if silent else [])
        assert now() <= 9 + 2 * publisher.ANSWER_SECONDS

    run(scenario, mode=mode, timeout=9.0)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_hangs_hangs_the_publisher(mode, place):
    async def scenario(setting):
        setting.hangs(place)
        try:
            await setting.publish(NEW)
        except RerollError:
            pass
        assert now() <= 200 + 2 * publisher.ANSWER_SECONDS

    run(scenario, mode=mode)


def test_the_time_counts_from_the_start_and_not_from_when_the_last_group_left():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=20))
        await settle()
        with pytest.raises(RerollError, match="serving.publication_timeout"):
            await setting.publish(NEW)
        assert now() == 9
        await setting.check()
        assert versions_of(await inside) == [OLD]

    for mode in MODES[:2]:
        run(scenario, mode=mode, timeout=9.0)


@every_mode
def test_both_attempts_share_the_time(mode):
    async def scenario(setting):
        setting.takes = {"begin": 6}
        setting.fails_once(("begin", None))
        with pytest.raises(RerollError, match="took longer than 9 s"):
            await setting.publish(NEW)
        assert now() == 9
        assert (setting.transport.begun, setting.transport.finished) == (2, 2)

    run(scenario, mode=mode, timeout=9.0)


@every_mode
def test_a_timeout_of_something_else_is_not_told_as_the_publications_own(mode):
    async def scenario(setting):
        error = TimeoutError("connection timed out")
        setting.fails_always(("stage", "first"), error)
        with pytest.raises(TimeoutError) as caught:
            await setting.publish(NEW)
        assert caught.value is error
        assert "TimeoutError: connection timed out" in setting.warnings[0]

    run(scenario, mode=mode)


@every_mode
@pytest.mark.parametrize("place", PLACES)
def test_a_cancelled_publication_leaves_whole_engines_in_routing_and_the_gate_open(mode, place):
    async def scenario(setting):
        if not reached(mode, place):
            return
        setting.hangs(place)
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert setting.transport.begun <= 1
        setting.hold.clear()
        await setting.check()
        await setting.serves()

    run(scenario, mode=mode)


@every_mode
def test_a_transport_finishes_also_when_the_cancellation_is_repeated(mode):
    async def scenario(setting):
        setting.hangs(("stage", "first"))
        setting.takes = {"finish": 2}
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        for _ in range(2):
            publishing.cancel()
            await asyncio.sleep(0.5)
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert setting.log.count("finish") == 1
        await setting.check()

    run(scenario, mode=mode)


@every_mode
def test_an_error_that_an_engine_makes_of_its_cancellation_is_not_tried_again(mode):
    async def scenario(setting):
        async def stage(engine):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise EngineError("the request was interrupted") from None

        setting.transport.stage = stage
        with pytest.raises(RerollError, match="took longer than 9 s"):
            await setting.publish(NEW)
        assert setting.transport.begun == 1
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert setting.transport.begun == 2
        await setting.check()

    run(scenario, mode=mode, timeout=9.0)


@every_mode
def test_a_transport_that_cannot_finish_after_a_failure_does_not_hide_it(mode):
    async def scenario(setting):
        setting.fails_always(("begin", None))
        setting.fails_always(("finish", None), OSError("the folder is gone"))
        with pytest.raises(EngineError, match="no room") as caught:
            await setting.publish(NEW)
        assert "the transport could not finish either: OSError: the folder is gone" in caught.value.__notes__

    run(scenario, mode=mode)


@every_mode
def test_an_engine_that_serves_something_else_is_named(mode):
    async def scenario(setting):
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.engines[1].claims = 99
        with pytest.raises(PluginError, match=rf"'{mode.name}' says that version 7 .* 'second' serves version 99"):
            await publishing
        await setting.check(doubtful=["second"])

    run(scenario, mode=mode)


def test_requests_that_an_evicted_engine_never_answers_end_by_the_timeout():
    async def scenario(setting):
        setting.takes = {"begin": 1}
        stuck = asyncio.create_task(setting.group("stuck", tokens=1000))
        await settle()
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.fails_once(("stage", "first"))
        setting.hangs(("weight_version", "first"))
        try:
            await publishing
        except RerollError:
            pass
        assert now() <= 200 + 2 * publisher.ANSWER_SECONDS
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)

    for mode in MODES[:2]:
        run(scenario, mode=mode)


def test_a_request_pinned_elsewhere_is_no_concern_of_the_publisher():
    async def scenario(setting):
        setting.router.pin("mine", setting.engines[1])
        completion = await setting.router.generate("mine", request("mine"))
        assert versions_of([completion]) == [OLD]
        setting.router.release("mine")
        await setting.publish(NEW)

    run(scenario)
