"""Weights that never change: engines that are lost come back and are used, or the run goes on without them."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import mortal_engine
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "generation"))

from generating_cases import World, run_of, start

from reroll.api import Engine, EngineError, EngineUnavailable
from reroll.publication import recovery
from reroll.publication.frozen import FrozenWeights
from reroll.serving.router import LeastOutstandingTokensRouter


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(recovery, "FIRST_PAUSE", 0.0)


def told(entries):
    return {(entry.position, entry.trial): (entry.outcome, entry.seed, entry.tokens) for entry in entries}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return told(start(run_of(), tmp_path_factory.mktemp("unbroken"), World()))


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize(("dies", "refusals"), [(0, 0), (5, 0), (5, 2), (10, 0)])
def test_an_engine_that_is_lost_comes_back_and_nothing_is_missing(engines, dies, refusals, tmp_path, unbroken):
    world = World(dies=dies, refusals=refusals)
    entries = start(run_of(f"serving.num_engines={engines}"), tmp_path, world)
    assert told(entries) == unbroken
    assert max(Counter((entry.position, entry.trial) for entry in entries).values()) == 1
    first, *rest = world.engines
    if engines == 1:
        assert (first.recovered, first.kept) == (refusals + 1, 1)
        assert f"engine {first.address} is back" in world.lines.getvalue()
    assert all((engine.recovered, engine.kept) == (0, 0) for engine in rest)
    assert f"engine {first.address} was lost: told to die" in world.lines.getvalue()


def test_a_generation_goes_on_without_an_engine_that_does_not_come_back(tmp_path, unbroken):
    world = World(dies=2, refusals=99)
    overrides = ("serving.num_engines=2", "serving.engine_restarts=2")
    assert told(start(run_of(*overrides), tmp_path, world)) == unbroken
    assert "The run goes on without it" in world.lines.getvalue() or world.engines[0].recovered < 2


def test_with_the_last_engine_the_generation_ends_and_is_gone_on_with(tmp_path, unbroken):
    run = run_of("serving.engine_restarts=2")
    with pytest.raises(EngineError, match="no engine is left"):
        start(run, tmp_path, World(dies=7, refusals=99))
    entries = start(run, tmp_path, world := World())
    assert told(entries) == unbroken
    assert 18 - 7 <= world.answers <= 18 - 7 + 4, "what was finished is kept"


def test_a_real_engine_that_is_killed_in_the_middle_answers_the_rest_after_it_was_started_again(tmp_path):
    from forked_workers import forked_workers

    run = run_of('serving.engine="mortal"', "rollout.rollout_max_response_len=16", plugin=mortal_engine)
    restarts = []

    async def kill(session):
        (engine,) = session.recovery._publisher.engines
        router = session.runner._maker.router
        while session.states.count(range(6))["left"] > 12 or not router.in_flight(engine):
            await asyncio.sleep(0.005)
        engine.die()
        await engine.lost()
        while not session.recovery.restarts:
            await asyncio.sleep(0.005)
        restarts.append(session.recovery.restarts)

    with forked_workers():
        entries = start(run, tmp_path / "killed", World(), kill)
        whole = start(run, tmp_path / "whole", World())
    assert restarts == [1]
    assert {(entry.position, entry.trial): entry.seed for entry in entries} == {
        (entry.position, entry.trial): entry.seed for entry in whole
    }
    assert len(entries) == len(whole) == 18
    assert {entry.outcome for entry in entries} <= {"passed", "failed"}


class Held(Engine):
    name = "held"

    def __init__(self, holds_start):
        super().__init__()
        self.holds_start, self.address, self.kept = holds_start, "held", 0

    async def keep_weights(self):
        self.kept += 1

    async def weight_version(self):
        return 0


def test_only_engines_that_do_not_hold_what_they_were_started_with_are_asked_to_keep_it():
    engines = [Held(True), Held(False)]
    weights = FrozenWeights(engines, LeastOutstandingTokensRouter(engines), 1.0)
    asyncio.run(weights.begin())
    assert [engine.kept for engine in engines] == [0, 1]


def test_an_engine_that_cannot_say_what_it_has_loaded_stays_out():
    class Silent(Held):
        keep_weights = Engine.keep_weights

    async def body():
        engine = Silent(True)
        router = LeastOutstandingTokensRouter([engine])
        weights = FrozenWeights([engine], router, 1.0)
        weights.lose(engine, EngineUnavailable("gone"))
        with pytest.raises(EngineError, match="cannot say what it has loaded"):
            await weights.readmit(engine)
        assert weights.fleet.absent == {0}

    asyncio.run(body())
