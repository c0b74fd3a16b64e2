"""Whole runs with real workers, one of which is killed."""

import asyncio
from types import SimpleNamespace

import mortal_engine
import pytest
from driving import session_of

from reroll.loop import train
from reroll.traces.saved import read_rollouts, step_directory

ASYNC = ["async.fully_async=true", "async.max_weight_staleness=3"]


def run_with_a_death(path, output, *overrides, after):
    """A whole run whose first engine is killed in the middle of a response once so many steps are done; its summary,
    the trainer's last weights, and those that the engines serve which are there."""
    seen = SimpleNamespace()

    async def body():
        given = ['serving.engine="mortal"', *overrides]
        async with session_of(path, output, *given, plugin=mortal_engine) as session:
            engine = session.engines[0]

            async def kill():
                while session.trainer.version < after or not session.maker.router.in_flight(engine):
                    await asyncio.sleep(0.01)
                engine.die()

            killing = asyncio.create_task(kill())
            await train(session)
            await killing
            session.finish_summary()
            seen.summary, seen.weight = session.accounts.summary, await session.trainer.weights_digest()
            fleet = session.publisher.fleet
            seen.served = [await fleet.engines[number].weights_digest() for number in fleet.present()]

    asyncio.run(body())
    return seen


def check(seen, output, collections):
    assert seen.summary.collections == collections
    counts = dict(seen.summary.ledger)
    assert counts.pop("dispatched") == sum(counts.values())
    assert not counts.get("failed") and not counts.get("in_flight") and not counts.get("queued")
    assert set(seen.served) <= {seen.weight}
    for rollout_id in range(collections):
        records = list(read_rollouts(step_directory(output, rollout_id)))
        assert all(not record["errors"] for record in records)
    assert seen.summary.engine_absent_seconds > 0


def test_a_run_whose_only_engine_is_killed_goes_on_where_it_was(run_file, tmp_path):
    output = tmp_path / "out"
    overrides = ["rollout.num_rollout=3", "rollout.group_filters=[]", "serving.check_weight_update_equal=true"]
    seen = run_with_a_death(run_file(), output, *overrides, after=1)
    check(seen, output, collections=3)
    assert seen.summary.engine_restarts == 1
    assert seen.served == [seen.weight]
    for rollout_id in range(3):
        versions = {
            span[0]
            for record in read_rollouts(step_directory(output, rollout_id))
            for node in record["nodes"]
            for span in node["weight_versions"]
        }
        assert versions == {rollout_id}, "never of the weights that it was started with"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["barrier", "engine_drain", "refresh"])
def test_an_asynchronous_run_goes_on_with_the_engine_that_is_left(run_file, tmp_path, mode):
    output = tmp_path / "out"
    overrides = [*ASYNC, f'serving.publication_mode="{mode}"', "serving.num_engines=2", "rollout.num_rollout=12"]
    seen = run_with_a_death(run_file(), output, *overrides, "rollout.group_filters=[]", after=2)
    check(seen, output, collections=12)
    assert seen.summary.ledger["consumed"] == 48
