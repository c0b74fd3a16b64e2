"""Engines that are lost: publications go on without them, and they come back with the current weights or not at all."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.api import EngineError, EngineUnavailable, RerollError, WorkerDied
from reroll.publication import publisher

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import MODES, NEW, OLD, STAGES, now, places, run, settle, versions_of

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
GONE = EngineUnavailable("the connection was refused")


def loses(setting, number, reason=GONE):
    setting.engines[number].die()
    setting.publisher.lose(setting.engines[number], reason)


async def comes_back(setting, number):
    await setting.engines[number].recover()
    return await setting.publisher.readmit(setting.engines[number])


# Publications


@every_mode
@pytest.mark.parametrize("place", places(STAGES))
@pytest.mark.parametrize("engines", [2, 3])
def test_a_publication_goes_on_without_an_engine_that_dies_in_it(mode, place, engines):
    async def scenario(setting):
        groups = [asyncio.create_task(setting.group(name, turns=2)) for name in "abcd"]
        await settle()
        setting.source.steps = NEW
        victim = setting.engines[1]
        setting.dies_at(place, victim)
        async with setting.watched(most=0) as recovery:
            report = await setting.publish(NEW)
            rest = [engine for engine in setting.engines if engine is not victim]
            if victim.gone.is_set() and setting.router.gone:
                assert report.engines == [engine.address for engine in rest]
                assert recovery.absent_seconds >= 0
            assert [engine.version for engine in rest] == [NEW] * len(rest)
            assert setting.router.out == set()
            for group in groups:
                versions = versions_of(await group)
                assert set(versions) <= {OLD, NEW}
            assert await setting.serves() == [NEW]
            assert report.seconds < 40

    run(scenario, mode=mode, engines=engines)


@every_mode
@pytest.mark.parametrize("place", places(STAGES, ["first"]))
def test_with_its_last_engine_a_publication_loses_nothing_but_its_purpose(mode, place):
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=5))
        await settle()
        setting.source.steps = NEW
        setting.dies_at(place, setting.engines[0])
        async with setting.watched() as recovery:
            report = await setting.publish(NEW)
            assert report.engines in ([], ["first"])
            assert await setting.serves() == [NEW]
            assert len(await inside) == 2
            assert recovery.restarts == setting.engines[0].restarts
        assert setting.router.gone == set()

    run(scenario, mode=mode, engines=1)


@every_mode
def test_a_publication_carries_to_the_engines_that_are_there(mode):
    async def scenario(setting):
        loses(setting, 1)
        report = await setting.publish(NEW)
        assert report.engines == ["first", "third"]
        assert report.attempts == 1
        assert setting.versions == [NEW, OLD, NEW]
        assert setting.warnings == []
        assert await setting.serves() == [NEW]

    run(scenario, mode=mode, engines=3)


@every_mode
def test_a_publication_without_engines_carries_nothing(mode):
    async def scenario(setting):
        loses(setting, 0)
        loses(setting, 1)
        report = await setting.publish(NEW)
        assert (report.engines, report.num_bytes, report.version) == ([], 0, NEW)
        assert setting.transport.begun == 0
        setting.source.steps = NEW
        assert await comes_back(setting, 1) == NEW
        assert await setting.serves() == [NEW]

    run(scenario, mode=mode)


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.name)
def test_draining_does_not_wait_for_what_a_lost_engine_never_answers(mode):
    async def scenario(setting):
        stuck = asyncio.create_task(setting.group("stuck", tokens=50))
        await settle()
        assert setting.engines[0].running == 2
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(1.5)
        setting.engines[0].gone.set()
        setting.engines[0].alive = lambda: None  # its requests hang
        setting.publisher.lose(setting.engines[0], GONE)
        report = await publishing
        assert report.engines == ["second"]
        assert 50 <= report.seconds + setting.takes.get("begin", 0) < 60, "the group was made again by the other engine"
        assert len(versions_of(await stuck)) == 1

    run(scenario, mode=mode)


@every_mode
def test_the_loss_is_said_and_does_not_count_as_a_failure(mode):
    async def scenario(setting):
        setting.dies_at(("stage", "first"), setting.engines[0])
        setting.fails_once(("stage", "third"), after=0 if mode.name == "engine_drain" else 1)
        report = await setting.publish(NEW)
        assert report.attempts == 3
        assert report.engines == ["second", "third"]
        assert "engine first was lost while version 7 was published; it goes on with second, third" in setting.warnings
        assert any("is tried once more" in warning for warning in setting.warnings)

    run(scenario, mode=mode, engines=3)


@every_mode
def test_a_mode_that_waits_for_the_lost_engine_while_it_cleans_up_does_not_hold_the_publication_up(mode):
    class Stubborn(mode):
        async def publish(self, context):
            try:
                return await super().publish(context)
            finally:
                if any(engine.gone.is_set() for engine in context.engines):
                    await asyncio.Event().wait()

    async def scenario(setting):
        setting.dies_at(("stage", "first"), setting.engines[0])
        report = await setting.publish(NEW)
        assert report.engines == ["second"]
        assert now() <= publisher.ANSWER_SECONDS + 10

    run(scenario, mode=Stubborn)


# Readmission


def test_an_engine_comes_back_with_the_current_weights_and_an_empty_cache():
    async def scenario(setting):
        setting.source.steps = NEW
        await setting.publish(NEW)
        loses(setting, 1)
        assert (await setting.publish(NEW)).engines == ["first"]
        await setting.engines[1].recover()
        setting.engines[1].cached = OLD
        assert setting.router.gone == {"second"}
        assert await setting.publisher.readmit(setting.engines[1]) == NEW
        assert (setting.versions, setting.router.gone, setting.router.out) == ([NEW, NEW], set(), set())
        assert setting.transport.finished == setting.transport.begun
        await asyncio.gather(setting.group("a"), setting.group("b"))
        assert setting.engines[1].cached == NEW
        assert (await setting.publish(NEW)).engines == ["first", "second"]

    run(scenario)


@pytest.mark.parametrize("place", places(STAGES, ["second"]))
@pytest.mark.parametrize("dies", [True, False])
def test_an_engine_that_cannot_be_loaded_stays_out(place, dies):
    async def scenario(setting):
        setting.source.steps = NEW
        loses(setting, 1)
        if dies:
            setting.dies_at(place, setting.engines[1])
        else:
            setting.fails_once(place)
        if dies and place[0] == "finish":
            setting.engines[1].flush_cache = setting.engines[1].resume  # what comes after the transport has finished
        with pytest.raises(EngineUnavailable if dies else EngineError):
            await comes_back(setting, 1)
        assert setting.router.gone == {"second"}
        assert setting.transport.finished == setting.transport.begun
        assert await setting.serves() == [OLD]
        assert await comes_back(setting, 1) == NEW
        assert setting.router.gone == set()

    run(scenario)


def test_an_engine_that_says_another_version_than_it_was_loaded_with_stays_out():
    async def scenario(setting):
        loses(setting, 1)
        setting.engines[1].claims = 3
        with pytest.raises(EngineError, match="'second' was loaded with version 0 and serves 3"):
            await comes_back(setting, 1)
        assert setting.router.gone == {"second"}

    run(scenario)


def test_an_engine_that_comes_back_in_the_middle_of_a_step_gets_what_the_step_makes():
    async def scenario(setting):
        loses(setting, 1)
        step = asyncio.create_task(setting.source.train(30))
        await settle()
        assert await comes_back(setting, 1) == 1
        assert now() >= 30
        assert (setting.engines[1].version, setting.engines[1].tensors) == (1, 1)
        await step

    run(scenario)


@pytest.mark.parametrize("stage", ["begin", "stage", "commit", "flush"])
def test_a_step_that_begins_while_an_engine_is_loaded_is_waited_for_and_loaded_as_well(stage):
    async def scenario(setting):
        loses(setting, 1)
        setting.takes = {stage: 2}
        back = asyncio.create_task(comes_back(setting, 1))
        await asyncio.sleep(1)
        await setting.source.train(5)
        assert await back == 1
        assert (setting.engines[1].version, setting.engines[1].tensors) == (1, 1)

    run(scenario)


@every_mode
def test_publications_and_readmissions_exclude_each_other(mode):
    async def scenario(setting):
        loses(setting, 1)
        setting.takes = {"stage": 3, "commit": 2}
        publishing = asyncio.create_task(setting.publish(1))
        setting.source.steps = 1
        await settle()
        back = asyncio.create_task(comes_back(setting, 1))
        await settle()
        again = asyncio.create_task(setting.publish(1))
        assert (await publishing).engines == ["first"]
        assert await back == 1
        assert (await again).engines == ["first", "second"]
        carried = [event for event in setting.log if event in ("begin", "finish")]
        assert carried == ["begin", "finish"] * 3

    run(scenario, mode=mode)


# Recovery


@pytest.mark.parametrize("engines", [1, 2])
def test_a_lost_engine_is_started_again_loaded_and_used(engines):
    async def scenario(setting):
        setting.source.steps = NEW
        await setting.publish(NEW)
        setting.takes = {"recover": 40, "stage": 5}
        async with setting.watched() as recovery:
            group = asyncio.create_task(setting.group("inside", tokens=9))
            await asyncio.sleep(3.5)
            setting.engines[0].die()
            assert versions_of(await group) == [NEW]
            await asyncio.sleep(60)
            assert setting.router.gone == set()
            assert setting.engines[0].version == NEW
            assert (recovery.restarts, setting.engines[0].restarts) == (1, 1)
            assert 45 <= recovery.absent_seconds <= 47
        first, last = setting.warnings
        rest = "requests go to second" if engines == 2 else "requests wait"
        until = "It has 110 s to be back (serving.recovery_timeout)"
        assert first == f"engine first was lost: the server of first was killed. {until}; {rest}"
        assert last.startswith("engine first is back after 4") and last.endswith("with weights of version 7")

    run(scenario, engines=engines)


def test_an_idle_engine_says_itself_that_it_is_lost():
    async def scenario(setting):
        async with setting.watched() as recovery:
            await asyncio.sleep(10)
            setting.engines[1].die()
            await asyncio.sleep(0.6)
            assert setting.router.gone == {"second"} or recovery.restarts == 1
            await asyncio.sleep(5)
            assert setting.router.gone == set()
            setting.engines[1].die()
            await asyncio.sleep(5)
            assert recovery.restarts == setting.engines[1].restarts == 2

    run(scenario)


def test_an_engine_that_is_lost_again_while_it_is_loaded_is_started_once_more():
    async def scenario(setting):
        setting.hangs(("stage", "second"))
        setting.dies_at(("stage", "second"), setting.engines[1])
        async with setting.watched() as recovery:
            setting.engines[1].die()
            await asyncio.sleep(5)
            setting.engines[1].die()
            await asyncio.sleep(1)
            setting.hold.clear()
            setting.deaths.clear()
            await asyncio.sleep(10)
            assert recovery.restarts == 2
            assert setting.router.gone == set()
        assert "restart 1 of engine second failed: second was killed" in setting.warnings

    run(scenario)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_an_engine_that_does_not_start_is_given_up_and_the_run_goes_on_with_the_others(most):
    async def scenario(setting):
        setting.fails_always(("recover", "first"), EngineError("no device is left"))
        async with setting.watched(most=most) as recovery:
            setting.engines[0].die()
            await asyncio.sleep(100)
            assert recovery.restarts == most
            assert recovery.absent_seconds > 99, "it stays absent"
            assert await setting.serves() == [OLD]
            assert (await setting.publish(NEW)).engines == ["second"]
        last = "no device is left" if most else "first was killed"
        assert f"is not back after {most} tries (serving.engine_restarts = {most}" in setting.warnings[-1]
        assert f"at last: {last}. The run goes on without it; requests go to second" in setting.warnings[-1]

    run(scenario)


def test_with_the_last_engine_the_run_ends():
    async def scenario(setting):
        for address in ("first", "second"):
            setting.fails_always(("recover", address), EngineError(f"{address} has no device"))
        with pytest.raises(ExceptionGroup) as caught:
            async with setting.watched():
                setting.engines[0].die()
                await asyncio.sleep(30)
                setting.engines[1].die()
                await asyncio.sleep(30)
        (error,) = caught.value.exceptions
        assert isinstance(error, EngineError)
        assert "engine 'second' was lost and is not back" in str(error)
        assert str(error).endswith("at last: second has no device; no engine is left")

    run(scenario)


def test_a_run_whose_engine_hangs_when_it_is_started_ends_within_its_time():
    async def scenario(setting):
        setting.hangs(("recover", "first"))
        with pytest.raises(ExceptionGroup) as caught:
            async with setting.watched(timeout=110):
                setting.engines[0].die()
                await asyncio.sleep(1000)
        (error,) = caught.value.exceptions
        assert "it took longer than 110 s; raise serving.recovery_timeout; no engine is left" in str(error)
        assert 110 <= now() < 112

    run(scenario, engines=1)


def test_several_restarts_share_the_time_of_one_recovery():
    async def scenario(setting):
        setting.takes = {"recover": 40}
        setting.fails_always(("recover", "first"), EngineError("no device is left"))
        with pytest.raises(ExceptionGroup):
            async with setting.watched(most=99, timeout=110):
                setting.engines[0].die()
                await asyncio.sleep(1000)
        assert 110 <= now() < 112

    run(scenario, engines=1)


def test_a_step_and_a_publication_do_not_count_into_the_time_of_a_recovery():
    async def scenario(setting):
        setting.takes = {"recover": 90}
        async with setting.watched(timeout=110):
            step = asyncio.create_task(setting.source.train(1000))
            setting.engines[1].die()
            await step
            setting.takes = {}
            await asyncio.sleep(10)
            assert setting.router.gone == set()
            assert setting.engines[1].version == 1

    run(scenario)


def test_the_restarts_of_one_engine_are_counted_over_the_run():
    async def scenario(setting):
        async with setting.watched(most=2) as recovery:
            for _ in range(3):
                setting.engines[0].die()
                await asyncio.sleep(20)
            assert recovery.restarts == 2
            assert setting.router.gone == {"first"}

    run(scenario)


def test_an_engine_that_cannot_be_started_again_ends_the_run_with_its_last_words():
    async def scenario(setting):
        setting.engines[1].recoverable = False
        with pytest.raises(ExceptionGroup) as caught:
            async with setting.watched():
                setting.engines[1].die()
                await asyncio.sleep(100)
        (error,) = caught.value.exceptions
        assert "engine 'second' was lost and cannot be started again: second was killed" in str(error)

    run(scenario)


def test_a_trainer_that_dies_while_an_engine_is_loaded_ends_the_run_as_itself():
    async def scenario(setting):
        error = WorkerDied("trainer", "was killed by SIGKILL")
        setting.fails_once(("begin", None), error)
        with pytest.raises(ExceptionGroup) as caught:
            async with setting.watched():
                setting.engines[1].die()
                await asyncio.sleep(100)
        assert caught.value.exceptions == (error,)

    run(scenario)


def test_nothing_is_left_of_the_watch_over_engines():
    async def scenario(setting):
        before = asyncio.all_tasks()
        setting.hangs(("recover", "first"))
        async with setting.watched():
            setting.engines[0].die()
            await asyncio.sleep(5)
        assert asyncio.all_tasks() == before

    run(scenario)


# Comparing what is served


@every_mode
@pytest.mark.parametrize("comparable", [True, False])
def test_engines_that_serve_what_the_trainer_has_pass_the_comparison(mode, comparable):
    async def scenario(setting):
        for engine in setting.engines:
            engine.digest_like_trainer = comparable
        setting.source.steps = NEW
        assert (await setting.publish(NEW)).attempts == 1
        loses(setting, 1)
        assert await comes_back(setting, 1) == NEW
        assert setting.warnings == []

    run(scenario, mode=mode, engines=3, check_equal=True)


@every_mode
@pytest.mark.parametrize("comparable", [True, False])
def test_an_engine_with_other_tensors_fails_the_publication_and_gets_no_requests(mode, comparable):
    async def scenario(setting):
        for engine in setting.engines:
            engine.digest_like_trainer = comparable
        setting.engines[1].broken = True
        than = "the trainer has" if comparable else "other engines"
        with pytest.raises(RerollError, match=f"engine second served other tensors than {than}"):
            await setting.publish(NEW)
        assert "is tried once more" in setting.warnings[0]
        assert "no requests go to second." in setting.warnings[0]
        assert setting.router.out == {"second"}
        assert await setting.serves() == [NEW]
        setting.engines[1].broken = False
        await setting.publish(NEW)
        assert setting.router.out == set()

    run(scenario, mode=mode, engines=3, check_equal=True)


@pytest.mark.parametrize("comparable", [True, False])
def test_an_engine_that_comes_back_with_other_tensors_stays_out(comparable):
    async def scenario(setting):
        for engine in setting.engines:
            engine.digest_like_trainer = comparable
        loses(setting, 1)
        setting.engines[1].broken = True
        with pytest.raises(RerollError, match="second.* served other tensors than"):
            await comes_back(setting, 1)
        assert setting.router.gone == {"second"}
        setting.engines[1].broken = False
        await comes_back(setting, 1)

    run(scenario, check_equal=True)


def test_weights_are_compared_at_the_first_publication_after_each_interval():
    async def scenario(setting):
        setting.publisher.check_interval = 3
        setting.engines[1].broken = True
        for version in (1, 2):
            assert (await setting.publish(version)).attempts == 1
        with pytest.raises(RerollError, match="engine second served other tensors"):
            await setting.publish(4)
        with pytest.raises(RerollError, match="engine second served other tensors"):
            await setting.publish(4)
        setting.engines[1].broken = False
        await setting.publish(4)
        setting.engines[1].broken = True
        await setting.publish(5)
        with pytest.raises(RerollError, match="engine second served other tensors"):
            await setting.publish(6)

    run(scenario)
