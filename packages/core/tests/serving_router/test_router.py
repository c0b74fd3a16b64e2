"""Routing: a group stays on one engine, new ones go where the fewest tokens are outstanding, and what a lost engine had
goes to another one."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import Completion, Engine, EngineError, EngineUnavailable, GenerationRequest, SamplingParams
from reroll.serving.router import LeastOutstandingTokensRouter


class Held(Engine):
    """Keeps every request until it is let go."""

    name = "held"

    def __init__(self, address):
        super().__init__()
        self.address = address
        self.waiting = {}
        self.served = []
        self.requests = []

    async def generate(self, request):
        self.served.append(request.request_id)
        self.requests.append(request)
        self.waiting[request.request_id] = asyncio.get_running_loop().create_future()
        return await self.waiting[request.request_id]

    def finish(self, request_id):
        self.waiting[request_id].set_result(Completion(request_id, [1], [-1.0], [], "stop", 0))

    def fail(self, request_id, error=None):
        self.waiting[request_id].set_exception(error or EngineError("stopped"))


class Fixture:
    """A router over held engines, and the requests that were sent through it."""

    def __init__(self, number, **options):
        self.engines = [Held(f"engine-{index}") for index in range(number)]
        self.router = LeastOutstandingTokensRouter(self.engines, **options)
        self.sent = {}
        self.lost = []
        self.router.on_loss = lambda engine, error: self.lost.append((engine.address, str(error)))

    async def send(self, group, count=1, prompt=1, response=128):
        """Sends requests of a group; gives the numbers of the engines that got them."""
        names = [f"{group}.{len(self.sent) + number}" for number in range(count)]
        for name in names:
            request = GenerationRequest(
                name, [1] * prompt, SamplingParams(max_new_tokens=response, seed=len(self.sent))
            )
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

    async def drained(self):
        """For each engine whether `drained` returns at once."""
        tasks = [asyncio.create_task(self.router.drained(engine)) for engine in self.engines]
        await settled()
        found = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found


async def settled():
    """Lets everything happen that waits for nothing outside."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(number, scenario, **options):
    async def main():
        fixture = Fixture(number, **options)
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


def test_new_groups_go_where_the_fewest_tokens_are_outstanding():
    async def scenario(fixture, router):
        assert await fixture.send("a", prompt=10, response=90) == [0]
        assert await fixture.send("b", 3, prompt=20, response=10) == [1] * 3
        assert await fixture.send("c", prompt=4, response=4) == [1]
        assert await fixture.send("d", prompt=1, response=3) == [1]
        assert await fixture.send("e", prompt=1, response=1) == [0], "100 against 102"
        await fixture.finish("b")
        assert await fixture.send("f") == [1]

    run(2, scenario)


def test_of_equal_requests_new_groups_go_to_the_engine_with_the_fewest_and_to_the_first_of_equals():
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


def test_with_every_engine_excluded_new_groups_wait_in_order_and_placed_ones_go_on():
    async def scenario(fixture, router):
        first, second = fixture.engines
        await fixture.send("a")
        router.exclude(first)
        router.exclude(second)
        assert await fixture.send("b", 2) == [] == await fixture.send("c")
        assert fixture.loads() == [1, 0], "what waits is on no engine"
        assert await fixture.send("a") == [0]
        router.include(second)
        router.exclude(second)
        await settled()
        assert second.served == [], "excluded again before they went on"
        assert await fixture.send("d") == []
        router.include(second)
        await settled()
        assert [name.split(".")[0] for name in second.served] == ["b", "b", "c", "d"]
        await fixture.finish("b")
        assert await fixture.send("b") == [1]

    run(2, scenario)


def test_waiting_groups_spread_over_the_engines_that_come_back_together():
    async def scenario(fixture, router):
        for engine in fixture.engines:
            router.exclude(engine)
        for number in range(6):
            await fixture.send(str(number))
        for engine in fixture.engines:
            router.include(engine)
        await settled()
        assert fixture.loads() == [2, 2, 2]

    run(3, scenario)


def test_a_cancelled_wait_leaves_nothing_behind():
    async def scenario(fixture, router):
        (engine,) = fixture.engines
        router.exclude(engine)
        for group in "abc":
            await fixture.send(group)
        early, late, kept = fixture.sent.values()
        early.cancel()
        await settled()
        router.include(engine)
        late.cancel()  # woken already
        await settled()
        assert early.cancelled() and late.cancelled() and not kept.done()
        assert fixture.loads() == [1] and not router._waiting
        await fixture.finish("c")
        router.release("c")
        assert await fixture.drained() == [True]

    run(1, scenario)


def test_a_pin_lets_a_waiting_group_go_on():
    async def scenario(fixture, router):
        (engine,) = fixture.engines
        router.exclude(engine)
        await fixture.send("a")
        await fixture.send("b")
        router.pin("b", engine)
        await settled()
        assert [name.split(".")[0] for name in engine.served] == ["b"]

    run(1, scenario)


def test_evicted_groups_go_elsewhere_with_their_next_request():
    async def scenario(fixture, router):
        first, second = fixture.engines
        await fixture.send("a")
        router.exclude(second)
        router.exclude(first, evict=True)
        assert await fixture.send("a") == []
        assert fixture.loads() == [1, 0], "what is in flight stays"
        router.include(second)
        await settled()
        assert fixture.loads() == [1, 1]
        router.include(first)
        assert await fixture.send("a") == [1], "it is pinned anew"

    run(2, scenario)


def test_an_engine_is_drained_once_no_group_is_on_it():
    async def scenario(fixture, router):
        assert await fixture.drained() == [True, True]
        await fixture.send("a")
        waits = [asyncio.create_task(router.drained(fixture.engines[0])) for _ in range(2)]
        await fixture.finish("a")
        assert await fixture.drained() == [False, True], "a conversation between two requests"
        router.exclude(fixture.engines[0])
        assert await fixture.send("a") == [0]
        await fixture.finish("a")
        assert not any(wait.done() for wait in waits)
        router.release("a")
        router.pin("b", fixture.engines[0])
        await settled()
        assert not any(wait.done() for wait in waits), "the next came before they were told"
        router.release("b")
        await asyncio.gather(*waits)

    run(2, scenario)


def test_an_evicting_engine_is_drained_once_nothing_is_in_flight_there():
    async def scenario(fixture, router):
        await fixture.send("a")
        await fixture.send("b")
        await fixture.finish("b")
        assert await fixture.drained() == [False, False]
        for engine in fixture.engines:
            router.exclude(engine, evict=True)
        assert await fixture.drained() == [False, True]
        await fixture.finish("a")
        assert await fixture.drained() == [True, True]

    run(2, scenario)


def lost(why="the server has ended"):
    return EngineUnavailable(why)


def test_a_request_whose_engine_is_lost_is_sent_to_another_one_as_it_was():
    async def scenario(fixture, router):
        first, second = fixture.engines
        assert await fixture.send("a", 3) == [0] * 3
        first.fail("a.0", lost())
        await settled()
        assert fixture.loads() == [0, 3], "also what the lost engine has not answered"
        assert second.requests == first.requests, "same ids, same seeds"
        assert fixture.lost == [("engine-0", "the server has ended")], "told once"
        assert await fixture.send("a") == [1], "the group has moved as a whole"
        await fixture.finish("a")
        assert await fixture.drained() == [True, False]

    run(2, scenario)


def test_requests_of_several_groups_leave_a_lost_engine_in_order():
    async def scenario(fixture, router):
        for group in "abcdef":
            await fixture.send(group)
        router.lose(fixture.engines[0])
        await settled()
        assert fixture.engines[1].served == ["b.1", "e.4", "a.0"]
        assert fixture.engines[2].served == ["c.2", "f.5", "d.3"]
        assert fixture.lost == [], "who says it knows it"

    run(3, scenario)


def test_without_another_engine_requests_of_a_lost_one_wait_until_it_is_back():
    async def scenario(fixture, router):
        (engine,) = fixture.engines
        await fixture.send("a", 2)
        engine.fail("a.0", lost())
        await settled()
        assert await fixture.send("b") == []
        assert fixture.loads() == [0]
        router.include(engine)
        router.pin("b", engine)
        await settled()
        assert engine.served == ["a.0", "a.1"], "a lost engine is neither included nor pinned"
        router.exclude(engine)
        router.restore(engine)
        await settled()
        assert engine.served == ["a.0", "a.1"], "what was excluded stays so"
        router.include(engine)
        await settled()
        assert sorted(engine.served[2:]) == ["a.0", "a.1", "b.2"]
        await fixture.finish("a")

    run(1, scenario)


def test_a_late_failure_says_nothing_about_an_engine_that_has_come_back():
    async def scenario(fixture, router):
        (engine,) = fixture.engines

        class Slow(Held):
            async def generate(self, request):
                try:
                    return await super().generate(request)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.05)
                    raise lost() from None

        engine.__class__ = Slow
        await fixture.send("a")
        router.lose(engine)
        await settled()
        router.restore(engine)
        await asyncio.sleep(0.1)
        assert engine.served == ["a.0", "a.0"]
        assert fixture.lost == []
        await fixture.finish("a")

    run(1, scenario)


def test_a_request_that_is_lost_with_every_engine_ends_with_the_last_reason():
    async def scenario(fixture, router):
        await fixture.send("a")
        for number in range(5):
            engine = fixture.engines[number % 2]
            assert engine.served[-1:] == ["a.0"]
            engine.fail("a.0", lost(f"loss {number}"))
            await settled()
            router.restore(engine)
            await settled()
        text = "request a.0 was lost with its engine 5 times; the last reason: loss 4"
        with pytest.raises(EngineError, match=text) as caught:
            await fixture.sent["a.0"]
        assert not isinstance(caught.value, EngineUnavailable)
        assert len(fixture.lost) == 5
        assert fixture.loads() == [0, 0]

    run(2, scenario)


def test_other_failures_are_not_sent_again():
    async def scenario(fixture, router):
        await fixture.send("a", 2)
        fixture.engines[0].fail("a.0", TimeoutError("of the engine's own"))
        fixture.engines[0].fail("a.1")
        ended = await asyncio.gather(*fixture.sent.values(), return_exceptions=True)
        assert [type(error) for error in ended] == [TimeoutError, EngineError]
        assert fixture.loads() == [0, 0]
        assert fixture.engines[1].served == [] == fixture.lost

    run(2, scenario)


def test_a_request_that_is_cancelled_while_its_engine_is_lost_is_not_sent_again():
    async def scenario(fixture, router):
        await fixture.send("a")
        router.lose(fixture.engines[0])
        fixture.sent["a.0"].cancel()
        await settled()
        assert fixture.sent["a.0"].cancelled()
        assert fixture.engines[1].served == []
        assert fixture.loads() == [0, 0]

    run(2, scenario)


def test_an_engine_of_another_router_is_named():
    async def scenario(fixture, router):
        other = Held("stranger")
        calls = [router.exclude, router.include, router.lose, router.restore, router.in_flight]
        for call in [*calls, lambda engine: router.pin("a", engine)]:
            with pytest.raises(ValueError, match="engine stranger is not one of this router's, which are engine-0"):
                call(other)
        with pytest.raises(ValueError, match="stranger"):
            await router.drained(other)
        assert await fixture.send("a") == [0]

    run(1, scenario)


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3))
def test_equal_groups_are_spread_evenly(engines, groups, siblings):
    async def scenario(fixture, router):
        placed = [await fixture.send(str(number), siblings) for number in range(groups)]
        assert all(len(set(of)) == 1 and len(of) == siblings for of in placed)
        counts = Counter(of[0] for of in placed)
        assert sum(counts.values()) == groups
        assert max(counts.values()) - min(counts[index] for index in range(engines)) <= 1

    run(engines, scenario)


GROUPS, ENGINES = st.sampled_from("abcd"), st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["send", "send", "finish", "release", "cancel"]), GROUPS),
    st.tuples(st.sampled_from(["exclude", "evict", "include", "lose", "restore"]), ENGINES),
)


TOKENS = {"a": 2, "b": 3, "c": 5, "d": 40}
"""Of one request of a group, so that where a group goes is not only a matter of counting requests."""


class Expected:
    """What the router is to do, said without futures: where each group is, what waits, what each engine got."""

    def __init__(self, number):
        self.included = set(range(number))
        self.lost = set()
        self.home = {}
        self.waiting = []
        self.served = [[] for _ in range(number)]
        self.running = {}

    @property
    def usable(self):
        return self.included - self.lost

    def loads(self):
        return [list(self.running.values()).count(index) for index in range(len(self.served))]

    def tokens(self, index):
        return sum(TOKENS[name[0]] for name, at in self.running.items() if at == index)

    def arrive(self, name):
        self.waiting.append(name)
        self.place()

    def place(self):
        for name in list(self.waiting):
            if name[0] not in self.home and self.usable:
                self.home[name[0]] = min(self.usable, key=lambda index: (self.tokens(index), index))
            if name[0] in self.home:
                self.waiting.remove(name)
                self.running[name] = self.home[name[0]]
                self.served[self.home[name[0]]].append(name)

    def end(self, group, waiting):
        self.running = {name: index for name, index in self.running.items() if name[0] != group}
        if waiting:
            self.waiting = [name for name in self.waiting if name[0] != group]

    def lose(self, index):
        self.lost.add(index)
        self.leave(index)
        self.waiting += [name for name, at in self.running.items() if at == index]
        self.running = {name: at for name, at in self.running.items() if at != index}
        self.place()

    def leave(self, index):
        self.home = {group: at for group, at in self.home.items() if at != index}

    def drained(self):
        return [index not in self.home.values() and not load for index, load in enumerate(self.loads())]


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40))
def test_groups_stay_unless_evicted_and_nothing_is_lost(steps):
    async def scenario(fixture, router):
        expected = Expected(3)

        def finish(group):
            for engine in fixture.engines:
                for name, future in engine.waiting.items():
                    if name[0] == group and not future.done():
                        engine.finish(name)

        async def take(step, of):
            if step == "send":
                expected.arrive(f"{of}.{len(fixture.sent)}")
                await fixture.send(of, prompt=TOKENS[of] - 1, response=1)
            elif step == "finish":
                finish(of)
                expected.end(of, waiting=False)
            elif step == "cancel":
                for name, task in fixture.sent.items():
                    if name[0] == of:
                        task.cancel()
                expected.end(of, waiting=True)
            elif step == "release" and of not in {name[0] for name in [*expected.running, *expected.waiting]}:
                router.release(of)
                expected.home.pop(of, None)
            elif step == "include":
                router.include(fixture.engines[of])
                expected.included.add(of)
                expected.place()
            elif step == "lose":
                router.lose(fixture.engines[of])
                expected.lose(of)
            elif step == "restore":
                router.restore(fixture.engines[of])
                expected.lost.discard(of)
                expected.place()
            elif step in ("exclude", "evict"):
                router.exclude(fixture.engines[of], evict=step == "evict")
                expected.included.discard(of)
                if step == "evict":
                    expected.leave(of)
            await settled()
            assert [engine.served for engine in fixture.engines] == expected.served
            assert fixture.loads() == expected.loads()
            assert await fixture.drained() == expected.drained()

        for step, of in steps:
            await take(step, of)
        await take("restore", 0)
        await take("include", 0)
        for group in "abcd":
            await take("finish", group)
            await take("release", group)
        assert all(task.done() for task in fixture.sent.values())
        assert await fixture.drained() == [True] * 3

    run(3, scenario, attempts=99)
