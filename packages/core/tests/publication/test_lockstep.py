"""Streams in lockstep."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from reroll.publication.lockstep import Lockstep

BUCKETS = 6
DELAYS = st.lists(st.integers(0, 5), min_size=BUCKETS + 1, max_size=BUCKETS + 1)


async def stream(lockstep, name, delays, sent):
    await passes(delays[0])
    with lockstep.among(name):
        for number in range(BUCKETS):
            await lockstep.turn(name, number)
            await passes(delays[number + 1])
            sent.append((name, number))


async def passes(turns):
    for _ in range(turns):
        await asyncio.sleep(0)


@given(st.lists(DELAYS, min_size=1, max_size=4))
def test_streams_that_are_under_way_are_never_more_than_a_bucket_apart(streams):
    async def scenario():
        lockstep, sent = Lockstep(60.0), []
        names = [f"stream-{number}" for number in range(len(streams))]
        await asyncio.gather(
            *(stream(lockstep, name, delays, sent) for name, delays in zip(names, streams, strict=True))
        )
        for name in names:
            assert [number for other, number in sent if other == name] == list(range(BUCKETS))
        if all(delays[0] == 0 for delays in streams):
            assert [number for _, number in sent] == sorted(number for _, number in sent)

    asyncio.run(scenario())


def test_a_stream_that_is_stuck_or_has_failed_holds_nobody_up():
    async def scenario():
        lockstep, sent = Lockstep(0.05), []
        with lockstep.among("stuck"):
            await stream(lockstep, "goes on", [0] * (BUCKETS + 1), sent)
            assert len(sent) == BUCKETS
            await lockstep.turn("stuck", 1)
        lockstep = Lockstep(60.0)
        try:
            with lockstep.among("fails"):
                waits = asyncio.create_task(stream(lockstep, "waits", [0] * (BUCKETS + 1), sent))
                await passes(20)
                assert len(sent) == BUCKETS + 1
                raise OSError
        except OSError:
            await waits
        assert len(sent) == 2 * BUCKETS

    asyncio.run(scenario())
