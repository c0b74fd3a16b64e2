"""Routing: a group stays on one engine, new ones go where the least is in flight."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.api import Completion, Engine, EngineError, GenerationRequest, SamplingParams
from reroll.serving.router import LeastLoadedRouter


class Held(Engine):
    """Keeps every request until it is let go."""

    name = "held"

    def __init__(self, address):
        super().__init__()
        self.address = address
        self.waiting = {}
        self.served = []

    async def generate(self, request):
        self.served.append(request.request_id)
        self.waiting[request.request_id] = asyncio.get_running_loop().create_future()
        return await self.waiting[request.request_id]

    def finish(self, request_id):
        self.waiting[request_id].set_result(Completion(request_id, [1], [-1.0], [], "stop", 0))

    def fail(self, request_id):
        self.waiting[request_id].set_exception(EngineError("stopped"))


class Fixture:
    """A router over held engines, and the requests that were sent through it."""

    def __init__(self, number):
        self.engines = [Held(f"engine-{index}") for index in range(number)]
        self.router = LeastLoadedRouter(self.engines)
        self.sent = {}

    async def send(self, group, count=1):
        """Sends requests of a group; gives the numbers of the engines that got them."""
        names = [f"{group}.{len(self.sent) + number}" for number in range(count)]
        for name in names:
            request = GenerationRequest(name, [1], SamplingParams())
            self.sent[name] = asyncio.create_task(self.router.generate(group, request))
        await asyncio.sleep(0)
        return [index for name in names for index, engine in enumerate(self.engines) if name in engine.served]

    async def finish(self, group):
        for engine in self.engines:
            for name in list(engine.waiting):
                if name.split(".")[0] == group and not engine.waiting[name].done():
                    engine.finish(name)
        await asyncio.gather(*(task for name, task in self.sent.items() if name.split(".")[0] == group))

    def loads(self):
        return [self.router.in_flight(engine) for engine in self.engines]


def run(number, scenario):
    async def main():
        fixture = Fixture(number)
        async with asyncio.timeout(20):
            await scenario(fixture, fixture.router)
        for task in fixture.sent.values():
            task.cancel()
        await asyncio.gather(*fixture.sent.values(), return_exceptions=True)

    asyncio.run(main())


def test_a_request_is_answered_by_the_engine_that_got_it():
    async def scenario(fixture, router):
        await fixture.send("a")
        await fixture.finish("a")
        ((name, task),) = fixture.sent.items()
        assert task.result().request_id == name

    run(2, scenario)


def test_new_groups_go_to_the_engine_with_the_fewest_requests_and_to_the_first_of_equals():
    async def scenario(fixture, router):
        assert await fixture.send("a", 3) == [0, 0, 0]
        assert await fixture.send("b", 1) == [1]
        assert await fixture.send("c", 1) == [2]
        assert await fixture.send("d", 1) == [1]
        assert await fixture.send("e", 2) == [2, 2]
        assert fixture.loads() == [3, 2, 3]

    run(3, scenario)


def test_a_group_stays_where_it_is_even_where_another_engine_is_idle():
    async def scenario(fixture, router):
        await fixture.send("a", 2)
        assert await fixture.send("b") == [1]
        await fixture.finish("b")
        assert fixture.loads() == [2, 0]
        assert await fixture.send("a", 2) == [0, 0]
        await fixture.finish("a")
        await fixture.send("c")
        assert await fixture.send("a") == [0], "between two turns nothing of it is in flight"

    run(2, scenario)


def test_in_flight_falls_again_after_success_failure_and_cancellation():
    async def scenario(fixture, router):
        await fixture.send("a", 3)
        assert fixture.loads() == [3]
        first, second, third = fixture.sent
        (engine,) = fixture.engines
        engine.finish(first)
        engine.fail(second)
        fixture.sent[third].cancel()
        ended = await asyncio.gather(*fixture.sent.values(), return_exceptions=True)
        assert [type(item) for item in ended] == [Completion, EngineError, asyncio.CancelledError]
        assert fixture.loads() == [0]

    run(1, scenario)


def test_a_released_group_is_placed_anew():
    async def scenario(fixture, router):
        await fixture.send("a", 2)
        assert await fixture.send("a") == [0]
        router.release("a")
        assert await fixture.send("a") == [1]
        router.release("a")
        router.release("a")
        router.release("never seen")

    run(2, scenario)


def test_an_excluded_engine_gets_no_new_group_and_keeps_those_it_has():
    async def scenario(fixture, router):
        await fixture.send("a")
        router.exclude(fixture.engines[0])
        assert await fixture.send("b", 5) == [1] * 5
        assert await fixture.send("c") == [1], "though the other has fewer in flight"
        assert await fixture.send("a") == [0]
        router.include(fixture.engines[0])
        assert await fixture.send("d") == [0]

    run(2, scenario)


def test_including_an_engine_that_is_in_changes_nothing():
    async def scenario(fixture, router):
        router.include(fixture.engines[0])
        router.exclude(fixture.engines[1])
        router.exclude(fixture.engines[1])
        router.include(fixture.engines[1])
        await fixture.send("a")
        assert await fixture.send("b") == [1]

    run(2, scenario)


def test_a_pinned_group_goes_to_its_engine_whatever_the_load_and_may_be_moved():
    async def scenario(fixture, router):
        await fixture.send("a", 4)
        router.pin("b", fixture.engines[0])
        assert await fixture.send("b") == [0]
        router.pin("b", fixture.engines[2])
        assert await fixture.send("b") == [2]
        router.exclude(fixture.engines[2])
        assert await fixture.send("b") == [2], "excluding is for new groups"
        router.release("b")
        assert await fixture.send("b") == [1]

    run(3, scenario)


def test_with_every_engine_excluded_a_new_group_is_an_error_and_a_placed_one_goes_on():
    async def scenario(fixture, router):
        await fixture.send("a")
        for engine in fixture.engines:
            router.exclude(engine)
        with pytest.raises(EngineError, match="every engine is out of routing"):
            await router.generate("b", GenerationRequest("b", [1], SamplingParams()))
        assert fixture.loads() == [1, 0]
        assert await fixture.send("a") == [0]
        router.include(fixture.engines[1])
        assert await fixture.send("b") == [1], "what could not be placed is not pinned"

    run(2, scenario)


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3))
def test_equal_groups_are_spread_evenly(engines, groups, siblings):
    async def scenario(fixture, router):
        placed = [await fixture.send(str(number), siblings) for number in range(groups)]
        assert all(len(set(of)) == 1 and len(of) == siblings for of in placed)
        counts = Counter(of[0] for of in placed)
        assert sum(counts.values()) == groups
        assert max(counts.values()) - min(counts[index] for index in range(engines)) <= 1

    run(engines, scenario)
