"""Responses that go on under new weights."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.publication.refresh import Refresh

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import NEW, run, settle, versions_of


def run_refresh(scenario, **options):
    run(scenario, mode=Refresh, **options)


def test_engines_stage_and_commit_and_neither_gate_nor_routing_nor_cache_is_touched():
    async def scenario(setting):
        report = await setting.publish(NEW)
        log = setting.log
        assert log[0] == "begin"
        assert sorted(log[1:3]) == ["stage first", "stage second"]
        assert sorted(log[3:5]) == ["commit first", "commit second"]
        assert log[5:] == ["finish"]
        assert setting.versions == [NEW, NEW]
        assert (report.version, report.mode, report.num_bytes, report.attempts) == (NEW, "refresh", 1234, 1)
        await setting.check()

    run_refresh(scenario)


def test_what_is_in_flight_decodes_meanwhile_and_goes_on_under_new_weights():
    async def scenario(setting):
        groups = [asyncio.create_task(setting.group(name, tokens=20)) for name in "ab"]
        await settle()
        setting.takes = {"begin": 1, "stage": 2, "commit": 0.5}
        report = await setting.publish(NEW)
        assert setting.when("commit first") == setting.when("commit second") == 3.5
        assert report.in_flight == 4
        for completion in [completion for group in groups for completion in await group]:
            assert [tuple(span) for span in completion.weight_versions] == [(0, 0, 3), (NEW, 3, 20)]

    run_refresh(scenario)


def test_new_groups_enter_at_any_time():
    async def scenario(setting):
        setting.takes = {"begin": 4, "stage": 4, "commit": 4}
        publishing = asyncio.create_task(setting.publish(NEW))
        groups = []
        for number in range(14):
            groups.append(asyncio.create_task(setting.group(f"group {number}", tokens=1)))
            await settle()
            assert f"group {number} enters" in setting.log
            await asyncio.sleep(1)
        await publishing
        seen = [versions_of(await group) for group in groups]
        assert seen[0] == [0] and seen[-1] == [NEW]

    run_refresh(scenario)


def test_pauses_are_what_the_engines_report_and_not_what_the_clock_says():
    async def scenario(setting):
        setting.takes = {"begin": 1, "stage": 2, "commit": 0.5}
        report = await setting.publish(NEW)
        assert report.pause_seconds == pytest.approx(3 * 0.25)
        assert report.recompute_seconds == pytest.approx(3 * 2.0)
        assert report.seconds == pytest.approx(3.5)

    run_refresh(scenario, engines=3)


def test_no_engine_commits_before_all_hold_the_new_weights():
    async def scenario(setting):
        setting.hangs(("stage", "second"))
        publishing = asyncio.create_task(setting.publish(NEW))
        await settle()
        assert setting.versions == [0, 0]
        setting.hold["stage", "second"].set()
        await publishing

    run_refresh(scenario)


def test_the_mode_says_what_groups_may_expect():
    assert not Refresh.homogeneous_groups
