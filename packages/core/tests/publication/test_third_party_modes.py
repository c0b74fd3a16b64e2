"""Modes as a stranger writes them: with `reroll.api` alone, and with bugs."""

import asyncio
import sys
from pathlib import Path

import pytest

from reroll.api import Completion, EngineError, PluginError, PublicationMode, PublicationReport, WorkerDied

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import NEW, OLD, run, settle, versions_of


class CutShort(PublicationMode):
    """Ends what is in flight with what there is, then loads."""

    name = "cut_short"

    async def publish(self, context):
        report = PublicationReport(version=context.version, mode=self.name)
        context.admission.close()
        report.num_bytes = await context.transport.begin(context.source, context.version)
        for engine in context.engines:
            await context.transport.stage(engine)
        for engine in context.engines:
            await engine.abort()
        await context.admission.drained()
        for engine in context.engines:
            await context.transport.commit(engine, context.version)
            await engine.flush_cache()
        return report


class OneACall(PublicationMode):
    """Reloads the engines in another order each time, all at once in a task group of its own."""

    name = "one_a_call"
    homogeneous_groups = False
    calls = 0

    async def publish(self, context):
        self.calls += 1
        turned = self.calls % len(context.engines)
        await context.transport.begin(context.source, context.version)
        async with asyncio.TaskGroup() as tasks:
            for engine in [*context.engines[turned:], *context.engines[:turned]]:
                tasks.create_task(self.load(context, engine))
        return PublicationReport(version=context.version, mode=self.name, pause_seconds=1.5)

    async def load(self, context, engine):
        await context.transport.stage(engine)
        await context.transport.commit(engine, context.version, recompute=True)


class Forgetful(PublicationMode):
    """Closes the gate, takes an engine out of routing, loads the other one and says that it is done."""

    name = "forgetful"

    async def publish(self, context):
        context.admission.close()
        context.router.exclude(context.engines[1])
        await context.transport.begin(context.source, context.version)
        await context.transport.stage(context.engines[0])
        await context.transport.commit(context.engines[0], context.version)
        await context.engines[0].flush_cache()
        return PublicationReport(version=context.version, mode=self.name)


class Silent(PublicationMode):
    name = "silent"

    async def publish(self, context):
        return None


def abortable(setting):
    """Lets the engines' `abort` end what they generate."""
    for engine in setting.engines:
        generate, running = engine.generate, set()

        async def tracked(request, generate=generate, running=running, engine=engine):
            task = asyncio.create_task(generate(request))
            running.add(task)
            try:
                return await task
            except asyncio.CancelledError:
                return Completion(request.request_id, [], [], [], "abort", 0)
            finally:
                running.discard(task)

        async def abort(request_id=None, running=running):
            for task in list(running):
                task.cancel()

        engine.generate, engine.abort = tracked, abort


def test_a_mode_that_ends_what_is_in_flight_needs_nothing_of_core():
    async def scenario(setting):
        abortable(setting)
        inside = asyncio.create_task(setting.group("inside", tokens=10_000))
        await settle()
        report = await setting.publish(NEW)
        assert {completion.finish_reason for completion in await inside} == {"abort"}
        assert (report.mode, report.version, report.in_flight, report.attempts) == ("cut_short", NEW, 2, 1)
        assert report.engines == ["first", "second"]
        await setting.check()
        assert await setting.serves() == [NEW]

    run(scenario, mode=CutShort)


def test_a_mode_with_tasks_of_its_own():
    async def scenario(setting):
        for version in (1, 2, 3):
            report = await setting.publish(version)
            assert (report.pause_seconds, report.attempts) == (1.5, 1)
        await setting.check(old=3)

    run(scenario, mode=OneACall, engines=3)


@pytest.mark.parametrize(
    ("error", "attempts"), [(EngineError("no room for the weights"), 2), (WorkerDied("engine-1", "is gone"), 1)]
)
def test_an_error_from_a_group_of_tasks_is_told_as_itself(error, attempts):
    async def scenario(setting):
        setting.fails_always(("stage", "second"), error)
        with pytest.raises(type(error)) as caught:
            await setting.publish(NEW)
        assert caught.value is error
        assert setting.transport.begun == attempts
        await setting.check()

    run(scenario, mode=OneACall)


def test_a_worker_that_died_counts_for_more_than_what_else_went_wrong():
    async def scenario(setting):
        async def stage(engine):
            await asyncio.sleep(1)  # both fail in one turn of the event loop
            raise EngineError("no room") if engine is setting.engines[1] else WorkerDied("engine-1", "is gone")

        setting.transport.stage = stage
        with pytest.raises(WorkerDied):
            await setting.publish(NEW)
        assert setting.transport.begun == 1

    run(scenario, mode=OneACall)


def test_the_second_attempt_is_told_how_much_time_is_left():
    seen = []

    class Watching(OneACall):
        async def publish(self, context):
            seen.append(context.timeout)
            return await super().publish(context)

    async def scenario(setting):
        setting.takes = {"begin": 3}
        setting.fails_once(("begin", None))
        await setting.publish(NEW)
        assert seen == [200, 197]

    run(scenario, mode=Watching)


def test_a_mode_that_skips_an_engine_is_told_so_and_what_it_left_is_put_right():
    async def scenario(setting):
        with pytest.raises(
            PluginError,
            match="'forgetful' says that version 7 is served, but engine 'second' serves version 0; the mode must",
        ):
            await setting.publish(NEW)
        assert setting.versions == [NEW, OLD]
        await setting.check()
        await setting.serves()

    run(scenario, mode=Forgetful)


def test_a_gate_and_an_engine_that_a_mode_forgot_are_in_use_again():
    async def scenario(setting):
        setting.engines[1].version = NEW  # so that the mode gets away with loading one
        coming = asyncio.create_task(settle_and_enter(setting))
        await setting.publish(NEW)
        assert versions_of(await coming) == [NEW]
        await setting.check()

    async def settle_and_enter(setting):
        await settle()
        return await setting.group("coming")

    run(scenario, mode=Forgetful)


def test_a_mode_without_a_report_is_told_so():
    async def scenario(setting):
        with pytest.raises(PluginError, match="'silent' returned None; it must return a PublicationReport"):
            await setting.publish(NEW)
        await setting.check()

    run(scenario, mode=Silent)


def test_a_transport_need_not_be_finished_by_the_mode():
    async def scenario(setting):
        await setting.publish(NEW)
        assert setting.log[-1] == "finish"

    run(scenario, mode=OneACall)


class Pausing(OneACall):
    """Pauses every engine and never goes on."""

    async def publish(self, context):
        for engine in context.engines:
            await engine.pause("in_place")
        return await super().publish(context)


def test_engines_that_a_mode_left_paused_go_on():
    async def scenario(setting):
        paused = set()
        for engine in setting.engines:

            async def pause(mode, name=engine.address):
                paused.add(name)

            async def resume(name=engine.address):
                paused.discard(name)

            engine.pause, engine.resume = pause, resume
        await setting.publish(NEW)
        assert not paused

    run(scenario, mode=Pausing)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(6)], ids=lambda error: type(error).__name__)
def test_a_mode_cannot_end_the_run_in_silence(error):
    class Leaves(PublicationMode):
        name = "leaves"

        async def publish(self, context):
            raise error

    async def scenario(setting):
        with pytest.raises(PluginError, match="publication mode 'leaves'"):
            await setting.publish(NEW)
        await setting.check()

    run(scenario, mode=Leaves)
