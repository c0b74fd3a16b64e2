"""The barrier: nothing in flight while weights change, and nothing is let in before all engines have them."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.publication.barrier import Barrier

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import NEW, run, settle, versions_of

DURATIONS = {"begin": 1, "stage": 2, "commit": 0.5, "flush": 0.25}


def test_engines_stage_commit_and_flush_in_step_and_the_gate_opens_after():
    async def scenario(setting):
        report = await setting.publish(NEW)
        log = setting.log
        assert log[:2] == ["close", "begin"]
        assert sorted(log[2:4]) == ["stage first", "stage second"]
        assert sorted(log[4:6]) == ["commit first", "commit second"]
        assert sorted(log[6:8]) == ["flush first", "flush second"]
        assert log[8:] == ["open", "finish"]
        assert setting.versions == [NEW, NEW]
        assert (report.version, report.mode, report.num_bytes, report.attempts) == (NEW, "barrier", 1234, 1)
        assert report.engines == ["first", "second"]
        await setting.check()

    run(scenario)


def test_groups_in_flight_finish_while_engines_stage_and_before_any_commits():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=10))
        await settle()
        setting.takes = DURATIONS
        report = await setting.publish(NEW)
        assert setting.when("stage first") == setting.when("stage second") == 3
        assert setting.when("inside leaves") == 10
        assert setting.when("commit first") == 10.5
        assert setting.when("open") == 10.75
        assert report.pause_seconds == pytest.approx(2 * 0.75), "from the last group's end, of two engines"
        assert report.seconds == pytest.approx(10.75)
        assert versions_of(await inside) == [0]

    run(scenario)


def test_engines_stand_still_from_the_last_groups_end_also_while_they_still_stage():
    async def scenario(setting):
        setting.takes = DURATIONS
        report = await setting.publish(NEW)
        assert report.seconds == pytest.approx(3.75)
        assert report.pause_seconds == pytest.approx(2 * 3.75)
        assert report.recompute_seconds == 0

    run(scenario)


def test_a_group_that_comes_during_a_publication_enters_after_it_on_new_weights():
    async def scenario(setting):
        setting.takes = DURATIONS
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        coming = asyncio.create_task(setting.group("coming"))
        await publishing
        assert versions_of(await coming) == [NEW]
        assert setting.when("coming enters") == setting.when("open")

    run(scenario)


def test_a_conversation_that_is_in_goes_on_to_its_end_before_weights_change():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=2, turns=4))
        await settle()
        await setting.publish(NEW)
        assert setting.when("inside leaves") <= setting.when("commit first")
        assert versions_of(await inside) == [0]

    run(scenario)


def test_no_engine_serves_new_weights_before_all_hold_them():
    async def scenario(setting):
        setting.hangs(("stage", "second"))
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        assert setting.log == ["close", "begin", "stage first"]
        assert setting.versions == [0, 0]
        setting.hold["stage", "second"].set()
        await publishing
        assert setting.versions == [NEW, NEW]

    run(scenario)


def test_no_cache_is_dropped_before_all_engines_serve_new_weights():
    async def scenario(setting):
        setting.hangs(("commit", "first"))
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        assert setting.log[-1] == "commit second"
        setting.hold["commit", "first"].set()
        await publishing

    run(scenario)


def test_an_attempt_after_a_failure_finds_the_engines_still_empty():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=10))
        await settle()
        coming = asyncio.create_task(setting.publish(NEW))
        await settle()
        waiting = asyncio.create_task(setting.group("waiting"))
        setting.fails_once(("commit", "second"))
        report = await coming
        assert report.attempts == 2
        assert setting.log.count("open") == 1, "a gate that opened in between would have to drain again"
        assert versions_of(await inside) == [0]
        assert versions_of(await waiting) == [NEW]

    run(scenario)


def test_the_mode_says_what_groups_may_expect():
    assert Barrier.homogeneous_groups
