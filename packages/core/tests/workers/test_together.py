"""Work that runs together, and ends."""

import asyncio
import contextlib

import pytest

from reroll.api import RerollError
from reroll.workers.together import leaving_nothing


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_goes_on_when_it_is_cancelled_keeps_no_program_from_ending(fails):
    async def stubborn():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def work():
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        if fails:
            raise RerollError("done with it")
        return task.done()

    if fails:
        with pytest.raises(RerollError, match="done with it"):
            asyncio.run(leaving_nothing(work()))
    else:
        assert asyncio.run(leaving_nothing(work())) is False
