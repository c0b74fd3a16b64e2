"""What is dispatched together in a synchronous run is generated together, whatever binding takes."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from reroll.api import RenderedPrompt, Task
from reroll.rollouts.rounds import Rounds
from reroll.tasks.cursor import Dispatch

TASK = Task("q", {}, "set", 0, "0")
RENDERED = RenderedPrompt("q", (1,), "", "")


def dispatch(bound):
    return Dispatch(TASK, RENDERED if bound else None, 0)


def run(delays, rendered, together=True):
    """Group indices in the order in which they go on; turns of the loop in which each did."""
    order, turns, turn = [], {}, 0

    async def ticking():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def bind(index):
        for _ in range(delays[index]):
            await asyncio.sleep(0)
        return dispatches[index]

    async def make(index):
        assert await rounds.bound(index, bind(index)) is dispatches[index]
        order.append(index)
        turns[index] = turn

    async def main():
        clock = asyncio.ensure_future(ticking())
        tasks = [asyncio.ensure_future(make(index)) for index in dispatches]
        rounds.begin(dispatches)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        clock.cancel()

    rounds = Rounds(together)
    dispatches = {index: dispatch(index in rendered) for index in range(len(delays))}
    asyncio.run(main())
    return order, turns


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_a_round_goes_on_in_one_turn_and_in_the_order_of_dispatch(delays, rendered):
    delays = [0 if index in rendered else delay for index, delay in enumerate(delays)]
    order, turns = run(delays, rendered)
    assert order == sorted(order)
    assert len(set(turns.values())) == 1


def test_an_asynchronous_run_waits_for_nobody():
    order, _ = run([5, 0, 3], set(), together=False)
    assert order == [1, 2, 0]
