"""The order of requests, pauses and updates, and which part of a streamed text is certain. No server."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reroll.api import Completion, VersionSpan
from reroll.serving.http.chat import _certain
from reroll.serving.http.gate import Aborted, Gate, Ticket
from reroll.serving.http.served import Versions


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario):
    async def within():
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(within())


class Users:
    """Requests and updates that note when they are inside and stay until they are let go."""

    def __init__(self):
        self.gate = Gate()
        self.inside = []
        self.leave = {}
        self.tickets = {}
        self.tasks = {}

    def start(self, name, what):
        self.leave[name] = asyncio.Event()
        self.tickets[name] = Ticket()
        self.tasks[name] = asyncio.create_task(self._use(name, what))

    async def _use(self, name, what):
        way = self.gate.update() if what == "update" else self.gate.request(self.tickets[name])
        async with way:
            self.inside.append(name)
            await self.leave[name].wait()
        self.inside.remove(name)

    async def end(self, name):
        self.leave[name].set()
        await self.tasks[name]
        await settle()


def test_an_update_waits_for_what_is_in_flight_and_holds_up_what_comes():
    async def scenario():
        users = Users()
        users.start("first", "request")
        await settle()
        users.start("update", "update")
        await settle()
        users.start("second", "request")
        await settle()
        assert users.inside == ["first"]
        await users.end("first")
        assert users.inside == ["update"]
        await users.end("update")
        assert users.inside == ["second"]
        await users.end("second")

    run(scenario)


def test_while_paused_an_update_begins_at_once_and_nothing_goes_on_before_its_end():
    async def scenario():
        users = Users()
        users.start("running", "request")
        await settle()
        async with users.gate.pause():
            pass
        users.start("coming", "request")
        users.start("update", "update")
        await settle()
        assert users.inside == ["running", "update"]

        async def reopen():
            async with users.gate.reopen():
                assert users.inside == ["running"]

        reopening = asyncio.create_task(reopen())
        await settle()
        assert not reopening.done()
        await users.end("update")
        await reopening
        await settle()
        assert users.inside == ["running", "coming"]
        await users.end("running")
        await users.end("coming")
        assert await users.gate.idle(0)

    run(scenario)


def test_a_request_that_waits_can_be_ended():
    async def scenario():
        users = Users()
        async with users.gate.pause():
            pass
        users.start("waiting", "request")
        await settle()
        await users.gate.abort(users.tickets["waiting"])
        with pytest.raises(Aborted):
            await users.tasks["waiting"]

    run(scenario)


def test_an_update_whose_client_gives_up_while_it_waits_holds_nobody_up():
    async def scenario():
        users = Users()
        users.start("running", "request")
        await settle()
        users.start("update", "update")
        await settle()
        users.tasks["update"].cancel()
        await asyncio.gather(users.tasks["update"], return_exceptions=True)
        users.start("coming", "request")
        await settle()
        assert users.inside == ["running", "coming"]
        assert not await users.gate.idle(0.01)
        await users.end("running")
        await users.end("coming")

    run(scenario)


def test_spans_are_told_by_name_and_neighbours_of_one_name_are_one():
    versions = Versions()
    for name in ("1", None, "2"):
        versions.current = versions.next(name)
    assert versions.name == "2"
    found = [VersionSpan(0, 0, 2), VersionSpan(1, 2, 5), VersionSpan(2, 5, 6), VersionSpan(3, 6, 9)]
    completion = Completion("a", [1] * 9, [0.0] * 9, found, "length", 0)
    assert versions.spans(completion) == [("default", 0, 2), ("1", 2, 6), ("2", 6, 9)]


@given(
    st.text("ab1\N{REPLACEMENT CHARACTER}", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)
)
@example("bba", ["ba"])
def test_what_is_streamed_stays_whatever_follows(text, stops):
    def final(text):
        for stop in stops:
            if stop in text:
                text = text[: text.find(stop)]
        return text

    sent = ""
    for end in range(len(text) + 1):
        # A text ends where the first of the stop strings came up, so that later ones never meet it.
        if any(stop in text[: end - 1] for stop in stops if end):
            break
        certain = _certain(text[:end], tuple(stops))
        assert final(text[:end]).startswith(certain)
        assert certain.startswith(sent)
        sent = certain
