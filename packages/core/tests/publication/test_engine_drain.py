"""Engines that drain and load one after another, while the others go on."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.publication.engine_drain import EngineDrain

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import NEW, run, settle, versions_of


def run_drain(scenario, **options):
    run(scenario, mode=EngineDrain, **options)


def test_engines_leave_load_and_return_one_after_another_and_the_gate_stays_open():
    async def scenario(setting):
        report = await setting.publish(NEW)
        assert setting.log == [
            "begin",
            *(f"{event} first" for event in ("exclude", "stage", "commit", "flush", "include")),
            *(f"{event} second" for event in ("exclude", "stage", "commit", "flush", "include")),
            "finish",
        ]
        assert (report.version, report.mode, report.num_bytes, report.attempts) == (NEW, "engine_drain", 1234, 1)
        assert report.engines == ["first", "second"]
        await setting.check()

    run_drain(scenario)


def test_new_groups_go_to_the_engines_that_are_in_routing():
    async def scenario(setting):
        setting.takes = {"stage": 10}
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        early = asyncio.create_task(setting.group("early"))
        await asyncio.sleep(0.5)
        assert (setting.engines[0].running, setting.engines[1].running) == (0, 2)
        await asyncio.sleep(14)
        late = asyncio.create_task(setting.group("late"))
        await asyncio.sleep(0.5)
        assert (setting.engines[0].running, setting.engines[1].running) == (2, 0)
        assert versions_of(await early) == [0]
        assert versions_of(await late) == [NEW]
        await publishing

    run_drain(scenario)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_groups_keep_their_engine_and_one_version_while_never_two_engines_are_out(engines):
    async def scenario(setting):
        groups = [asyncio.create_task(setting.group(f"group {number}", turns=4)) for number in range(6)]
        await settle()
        setting.takes = {"begin": 1, "stage": 2}
        publishing = asyncio.create_task(setting.publish(NEW))
        for number in range(6, 30):
            await asyncio.sleep(1)
            groups.append(asyncio.create_task(setting.group(f"group {number}", turns=2)))
        report = await publishing
        seen = [versions_of(await group) for group in groups]
        assert all(len(versions) == 1 for versions in seen)
        assert [0] in seen and [NEW] in seen
        assert setting.router.most_out == 1
        assert report.in_flight == 12
        assert "close" not in setting.log

    run_drain(scenario, engines=engines)


def test_with_one_engine_new_groups_wait_until_it_serves_again():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=5))
        await settle()
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        coming = asyncio.create_task(setting.group("coming"))
        await publishing
        assert versions_of(await inside) == [0]
        assert versions_of(await coming) == [NEW]
        assert setting.when("coming leaves") == setting.when("include first") + 3

    run_drain(scenario, engines=1)


def test_an_engine_stands_still_from_its_last_group_until_it_returns():
    async def scenario(setting):
        inside = asyncio.create_task(setting.group("inside", tokens=10))
        await settle()
        assert setting.engines[0].running == 2
        setting.takes = {"begin": 1, "stage": 4, "commit": 0.5, "flush": 0.25}
        report = await setting.publish(NEW)
        # The first one staged while it decoded; the second one had nothing to do.
        assert setting.when("include first") == pytest.approx(10.75)
        assert setting.when("include second") == pytest.approx(15.5)
        assert report.pause_seconds == pytest.approx(0.75 + 4.75)
        assert report.recompute_seconds == 0
        assert versions_of(await inside) == [0]

    run_drain(scenario)


def test_an_engine_in_doubt_is_loaded_first_so_that_no_two_are_out():
    async def scenario(setting):
        setting.takes = {"begin": 1}
        publishing = asyncio.create_task(setting.publish(NEW))
        await asyncio.sleep(0.5)
        setting.fails_once(("commit", "second"))
        setting.engines[1].claims = 99
        while "exclude second" not in setting.log:
            await asyncio.sleep(0.1)
        while setting.transport.begun < 2:
            await asyncio.sleep(0.1)
        assert setting.router.out == {"second"}
        setting.engines[1].claims = None
        await publishing
        again = setting.log[setting.log.index("finish") :]
        assert [event for event in again if "commit" in event] == ["commit second", "commit first"]
        assert setting.router.most_out == 1
        await setting.check()

    run_drain(scenario)


def test_the_mode_says_what_groups_may_expect():
    assert EngineDrain.homogeneous_groups
