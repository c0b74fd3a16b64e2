"""Random failures, in every mode: what must hold, holds."""

import asyncio
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import EngineError, RerollError

sys.path.insert(0, str(Path(__file__).parent))

from publication_cases import MODES, NEW, OLD, STAGES, places, run, settle, versions_of

ENGINES = ("first", "second", "third")
failures = st.dictionaries(
    st.sampled_from(places(STAGES, ENGINES)),
    st.lists(st.booleans(), min_size=1, max_size=5),
    max_size=6,
)


@settings(max_examples=150)
@given(
    mode=st.sampled_from(MODES),
    engines=st.integers(1, 3),
    failures=failures,
    hangs=st.sampled_from([None] * 6 + places(STAGES, ENGINES)),
    durations=st.dictionaries(st.sampled_from(STAGES), st.sampled_from([0, 0.5, 3.0])),
    arrivals=st.lists(st.tuples(st.sampled_from([0, 0.5, 4]), st.integers(1, 6), st.integers(1, 3)), max_size=8),
    cancel=st.sampled_from([None, None, None, 0, 1, 5]),
)
def test_engines_are_whole_or_out_of_routing_and_groups_get_through(
    mode, engines, failures, hangs, durations, arrivals, cancel
):
    async def scenario(setting):
        setting.takes = durations
        cancelled = False
        for place, outcomes in failures.items():
            setting.fail[place] = iter([EngineError("trouble") if fails else None for fails in outcomes])
        if hangs:
            setting.hangs(hangs)
        groups = [asyncio.create_task(setting.group("inside", turns=2))]
        await settle()
        publishing = asyncio.create_task(setting.publish(NEW))
        for number, (delay, tokens, turns) in enumerate(arrivals):
            await asyncio.sleep(delay)
            groups.append(asyncio.create_task(setting.group(f"group {number}", tokens, turns)))
        if cancel is not None:
            await asyncio.sleep(cancel)
            if cancelled := publishing.cancel():  # a run that ends: nobody asks what engines serve
                for group in groups:
                    group.cancel()
                await asyncio.gather(*groups, return_exceptions=True)
        try:
            report = await publishing
        except (RerollError, asyncio.CancelledError):
            report = None
        for event in setting.hold.values():
            event.set()
        setting.hold.clear()
        doubtful = set(setting.router.out)
        if report is not None:
            assert setting.versions == [NEW] * engines
            assert doubtful == set()
            assert report.attempts == setting.transport.begun
        assert set(setting.versions) <= {OLD, NEW}
        assert setting.transport.finished >= setting.transport.begun
        for number, engine in enumerate(setting.engines):
            assert (engine.address in doubtful) == (number in setting.publisher.fleet.doubtful)
        if not cancelled and len(doubtful) < engines:
            assert len(await setting.serves()) == 1
            seen = [versions_of(await group) for group in groups]
            # Groups of an engine that is evicted may go on elsewhere; the producer generates those again.
            if mode.homogeneous_groups and not setting.router.evicted:
                assert all(len(versions) == 1 for versions in seen)
        setting.fail.clear()
        await setting.publish(NEW + 1)
        assert setting.versions == [NEW + 1] * engines
        assert setting.router.out == set()
        assert await setting.serves() == [NEW + 1]
        assert cancelled or await asyncio.gather(*groups)

    run(scenario, mode=mode, engines=engines, timeout=400.0)
