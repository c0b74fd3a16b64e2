"""Streams in lockstep."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from reroll.publication.lockstep import Lockstep

BUCKETS = 6
DELAYS = st.tuples(st.integers(0, 5), st.lists(st.integers(1, 5), min_size=BUCKETS, max_size=BUCKETS))
"""Turns of the event loop: until a stream begins, and of each bucket, which takes one at least."""

AT_ONCE = (0, [0] * BUCKETS)


async def stream(lockstep, name, delays, sent):
    begins, takes = delays
    await passes(begins)
    with lockstep.among(name):
        for number in range(BUCKETS):
            await lockstep.turn(name, number)
            await passes(takes[number])
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
        if all(begins == 0 for begins, _ in streams):
            assert [number for _, number in sent] == sorted(number for _, number in sent)

    asyncio.run(scenario())


def test_a_stream_that_is_stuck_or_has_failed_holds_nobody_up():
    async def scenario():
        lockstep, sent = Lockstep(0.05), []
        with lockstep.among("stuck"):
            await stream(lockstep, "goes on", AT_ONCE, sent)
            assert len(sent) == BUCKETS
            await lockstep.turn("stuck", 1)
        lockstep = Lockstep(60.0)
        try:
            with lockstep.among("fails"):
                waits = asyncio.create_task(stream(lockstep, "waits", AT_ONCE, sent))
                await passes(20)
                assert len(sent) == BUCKETS + 1
                raise OSError
        except OSError:
            await waits
        assert len(sent) == 2 * BUCKETS

    asyncio.run(scenario())
