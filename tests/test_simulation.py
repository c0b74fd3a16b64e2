"""Whole runs on a virtual clock, thousands of schedules of them: what must hold however parts race and fail."""

import asyncio
import logging
import re
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_parts import MODES, Recorder
from simulation import Scenario, simulate

from reroll.api import EngineError, PluginError, TrainingError
from reroll.loop import NothingToLearn
from reroll.publication.publisher import Publisher
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.buffer import CollectionSize, GroupBuffer
from reroll.rollouts.evaluation import EvaluationError
from reroll.rollouts.producer import MOST_RETURNS, Producer
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.cursor import Cursor

PLACES = ["engine", "worker", "stage", "scorer", "trainer", "save", "cancelled"]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Thousands of failures are logged."""
    logger = logging.getLogger("reroll")
    logger.disabled = True
    yield
    logger.disabled = False


def schedules(count):
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


@st.composite
def scenarios(draw, troubles=True, fatal=False, losses=False, **given):
    """Small runs of every kind."""
    batch, siblings = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    size = batch * siblings
    updates = draw(st.sampled_from([number for number in range(1, 5) if size % number == 0]))
    over_sampling = draw(st.sampled_from([1.0, 1.0, 1.5, 2.0]))
    rate = st.sampled_from([0.0, 0.0, 0.05, 0.3]) if troubles else st.just(0.0)
    values = {
        "seed": draw(st.integers(0, 2**32)),
        "collections": draw(st.integers(1, 5)),
        "batch": batch,
        "siblings": siblings,
        "updates": updates,
        "bound": draw(st.sampled_from([None, *(2 * updates - 1 + more for more in (0, 0, 1, 2, 5))])),
        "over_sampling": over_sampling,
        "engines": draw(st.integers(1, 3)),
        "mode": draw(st.sampled_from(sorted(MODES))),
        "tasks": draw(st.integers(2, 8)),
        "epochs": draw(st.sampled_from([None, None, 1, 2])),
        "eval_tasks": draw(st.integers(0, 2)),
        "eval_interval": draw(st.none() | st.integers(1, 3)),
        "right": draw(st.sampled_from([0.5, 0.5, 0.5, 0.9, 1.0])),
        "slow": draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
        "refused": draw(rate),
        "aborted": draw(rate),
        "unscored": draw(rate),
        "hopeless": troubles and draw(st.integers(0, 7)) == 7,
        "publication_faults": draw(st.sampled_from([0.0, 0.0, 0.01, 0.05])) if troubles else 0.0,
        "fatal": (draw(st.sampled_from(PLACES)), draw(st.integers(1, 25))) if fatal else None,
        "tokens": draw(st.integers(1, 3)),
        "save_interval": draw(st.sampled_from([None, 1, 2])),
        "async_save": draw(st.booleans()),
    } | given
    if losses:
        values["losses"] = draw(st.sampled_from([0.003, 0.01, 0.03, 0.1]))
        values["lost_again"] = draw(st.sampled_from([0.0, 0.0, 0.2, 0.5]))
        values["restarts"] = draw(st.sampled_from([0, 1, 3, 30]))
        values["streamed"] = draw(st.booleans())
    if values["bound"] is not None:
        values["capacity_factor"] = over_sampling * draw(st.sampled_from([1.0, 1.0, 1.5, 3.0]))
        values["concurrent_samples"] = draw(st.none() | st.integers(siblings, 4 * siblings))
        values["retry"] = draw(st.booleans())
    return Scenario(**values)


@schedules(900)
@given(scenarios())
def test_everything_holds_in_runs_with_troubles(scenario):
    check(simulate(scenario))


@schedules(500)
@given(scenarios(troubles=False))
def test_everything_holds_in_runs_without_troubles(scenario):
    check(simulate(scenario))


@schedules(500)
@given(scenarios(fatal=True))
def test_everything_holds_in_runs_that_something_ends(scenario):
    check(simulate(scenario))


@schedules(300)
@given(scenarios(losses=True))
def test_everything_holds_in_runs_that_lose_engines(scenario):
    check(simulate(scenario))


@schedules(120)
@given(scenarios(losses=True, fatal=True))
def test_everything_holds_in_runs_that_lose_engines_and_that_something_ends(scenario):
    check(simulate(scenario))


@schedules(250)
@given(scenarios(bound=None))
def test_synchronous_runs_take_turns(scenario):
    run = simulate(scenario)
    check(run)
    assert run.session.producer.buffer.size.ahead == 0
    for collection in run.collections:
        assert {version for item in collection.groups for version in versions_of(item.group)} <= {collection.version}


class Silent(Recorder):
    """Writes nothing."""

    @classmethod
    def from_run(cls, run):
        return None


class Broken(Recorder):
    """Fails in the middle of the run."""

    def group_left(self, observation_id, disposition, staleness):
        raise OSError("the disk is full")


@schedules(100)
@given(st.booleans().flatmap(lambda losses: scenarios(losses=losses)))
def test_recording_changes_nothing_and_a_seed_decides_everything(scenario):
    recorded, *others = (simulate(scenario, writers) for writers in ([Recorder], [], [Silent], [Broken, Recorder]))
    for other in others:
        assert other.events == recorded.events
        assert other.trained == recorded.trained
        assert without_ids(other.error) == without_ids(recorded.error)
    assert others[-1].heard[-1:] == recorded.heard[-1:] or others[-1].heard


def without_ids(error):
    """Ids are new in every run."""
    return re.sub("[0-9a-f]{32}", "", repr(error))


# Single runs


def count(run, disposition):
    return run.session.events.ledger.ended[disposition]


def test_data_that_runs_out_ends_the_run_with_what_there_is():
    run = simulate(Scenario(tasks=5, epochs=1, collections=9, seed=1))
    check(run)
    assert run.error is None
    assert [len(collection.groups) for collection in run.collections] == [2, 2, 1]
    assert run.session.accounts.display.lines[-1].startswith(
        "the data ran out after 3 collections; prompts: 5 dispatched, "
    )


@pytest.mark.parametrize("bound", [None, 1, 9])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_a_run_in_which_no_group_passes_ends_after_the_empty_collections_that_are_allowed(right, bound):
    run = simulate(Scenario(right=right, bound=bound, collections=20))
    check(run)
    assert isinstance(run.error, NothingToLearn)
    assert len(run.collections) == 3
    assert run.steps == []


@pytest.mark.parametrize("engines", [1, 3])
def test_a_mode_that_aborts_what_is_in_flight_loses_nothing(engines):
    runs = [
        simulate(
            Scenario(
                seed=seed,
                mode="restart",
                bound=4,
                batch=3,
                engines=engines,
                tasks=20,
                epochs=1,
                collections=99,
                concurrent_samples=8,
                slow=0.2,
            )
        )
        for seed in range(10)
    ]
    for run in runs:
        check(run)
        assert ran_out(run)
        assert count(run, "failed") == 0
    assert sum(count(run, "returned") for run in runs) > 20


@pytest.mark.parametrize("retry", [True, False])
def test_groups_that_grew_too_old_are_dispatched_again_or_dropped(retry):
    runs = [
        simulate(
            Scenario(
                seed=seed, mode="refresh", bound=1, slow=0.2, batch=3, tasks=20, epochs=1, collections=99, retry=retry
            )
        )
        for seed in range(20)
    ]
    for run in runs:
        check(run)
        assert ran_out(run)
        expired = count(run, "expired")
        assert run.session.events.retried == expired * retry
        assert run.session.events.ledger.dispatched == 20 + expired * retry
        assert {item.disposition for item in run.saved[None]} <= {"expired", "filtered"}
    assert sum(count(run, "expired") for run in runs) > 5


def test_a_task_that_is_aborted_every_time_fails_and_the_others_go_on():
    run = simulate(Scenario(hopeless=True, tasks=6, epochs=1, collections=99, bound=3))
    check(run)
    assert ran_out(run)
    assert (count(run, "failed"), count(run, "returned")) == (1, MOST_RETURNS)
    assert run.given_back == {"simulated:0": MOST_RETURNS}
    assert count(run, "consumed") + count(run, "filtered") == 5


def test_no_more_samples_are_in_flight_than_allowed():
    scenario = Scenario(bound=9, batch=4, concurrent_samples=7, collections=4, capacity_factor=10.0)
    run, free = simulate(scenario), simulate(replace(scenario, concurrent_samples=None))
    check(run)
    assert run.most_in_flight == 3
    assert free.most_in_flight > 10


def test_a_small_buffer_holds_back_what_the_staleness_bound_would_let_in():
    scenario = Scenario(bound=9, batch=4, collections=4, delays=(0.0, 0.1), capacity_factor=1.0)
    run, free = simulate(scenario), simulate(replace(scenario, capacity_factor=10.0))
    check(run)
    check(free)
    assert run.most_buffered == 4
    assert free.most_buffered > 8


@pytest.mark.parametrize("bound", [None, 1, 5])
def test_over_sampling_fills_collections(bound):
    scenario = Scenario(bound=bound, batch=4, over_sampling=8.0, capacity_factor=8.0, collections=5)
    run, plain = simulate(scenario), simulate(replace(scenario, over_sampling=1.0))
    check(run)
    check(plain)
    assert [len(collection.passed) for collection in run.collections] == [4] * 5
    assert sum(len(collection.passed) for collection in plain.collections) < 15


@pytest.mark.parametrize("collections", [1, 2, 3])
def test_nothing_is_dispatched_beyond_the_last_collection(collections):
    run = simulate(Scenario(bound=20, collections=collections, batch=3, tasks=100))
    check(run)
    assert run.session.events.ledger.dispatched == 3 * collections


@pytest.mark.parametrize(("bound", "mode"), [(None, "barrier"), (3, "restart")])
def test_a_run_in_which_everything_is_aborted_ends(bound, mode):
    run = simulate(Scenario(hopeless=True, tasks=1, bound=bound, mode=mode), most_turns=5000)
    check(run)
    assert isinstance(run.error, NothingToLearn)


def recovering(**values):
    """Runs of two engines that are lost now and then, and always come back."""
    scenario = Scenario(engines=2, losses=0.01, restarts=99, collections=6, batch=3, tasks=100, **values)
    return [replace(scenario, seed=seed) for seed in range(20)]


@pytest.mark.parametrize("bound", [None, 3])
@pytest.mark.parametrize("mode", ["barrier", "engine_drain", "refresh"])
def test_a_run_goes_on_where_its_engines_come_back(mode, bound):
    runs = [simulate(scenario) for scenario in recovering(mode=mode, bound=bound)]
    for run in runs:
        check(run)
        assert run.error is None
        assert len(run.collections) == 6
        summary = run.session.accounts.summary
        assert summary.engine_restarts >= len(run.losses) > 0 or not run.losses
        assert (summary.engine_absent_seconds > 0) == bool(run.losses)
        told = [line for line in run.session.accounts.display.lines if " was lost: " in line]
        assert len(told) == len(run.losses)
    assert sum(len(run.losses) for run in runs) > 20


def test_a_group_that_two_engines_made_under_different_weights_is_generated_again():
    runs = [simulate(scenario) for scenario in recovering(mode="engine_drain", bound=5, siblings=4)]
    for run in runs:
        check(run)
    assert sum(count(run, "returned") for run in runs) > 5


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_run_ends_where_no_engine_can_be_started_again(restarts):
    for seed in range(10):
        run = simulate(Scenario(seed=seed, engines=2, losses=0.05, lost_again=1.0, restarts=restarts, collections=99))
        check(run)
        assert type(run.error) is EngineError
        assert f"is not back after {restarts} tries" in str(run.error)
        assert str(run.error).endswith("no engine is left")
        assert run.session.recovery.restarts == 2 * restarts


# The checks themselves


def nothing_is_stale(patch):
    patch.setattr(CollectionSize, "is_stale", lambda size, group, version: False)


def one_collection_too_far_ahead(patch):
    ahead = CollectionSize.ahead.fget
    patch.setattr(CollectionSize, "ahead", property(lambda size: ahead(size) + 1))
    nothing_is_stale(patch)


def given_back_tasks_are_forgotten(patch):
    patch.setattr(Cursor, "give_back", lambda cursor, dispatch: None)


def mixed_groups_are_kept(patch):
    patch.setattr(
        Producer, "_unusable", lambda producer, group: any(trace.stop_condition == "abort" for trace in group.traces)
    )


def a_taken_group_stays(patch):
    take = GroupBuffer.take

    def keep_one(buffer):
        taken = take(buffer)
        if not buffer.full and taken[:1] and taken[0].passed:
            buffer.put(taken[0])
        return taken

    patch.setattr(GroupBuffer, "take", keep_one)


def any_number_is_dispatched(patch):
    patch.setattr(Producer, "_busy", lambda producer: False)


def admission_stays_closed(patch):
    patch.setattr(GroupAdmission, "open", lambda admission: None)


def buffered_groups_are_not_saved(patch):
    patch.setattr(Producer, "leftovers", lambda producer: (list(producer._expired), []))


def the_oldest_wait_until_they_are_too_old(patch):
    nothing_is_stale(patch)
    patch.setattr("reroll.rollouts.buffer._age", lambda item: (item.group.staleness(0), item.group.group_index))


def a_lost_engine_is_used_as_soon_as_it_runs(patch):
    async def readmit(publisher, engine, patience):
        publisher.fleet.restore(engine)
        return engine.version

    patch.setattr(Publisher, "readmit", readmit)


def nobody_looks_whether_the_trainer_stepped_meanwhile(patch):
    async def readmit(publisher, engine, patience):
        async with publisher._turn:
            version = await publisher.source.completed_steps()
            async with patience():
                await publisher._load(engine, version)
            publisher.fleet.restore(engine)
            return version

    patch.setattr(Publisher, "readmit", readmit)


def publications_do_not_wait_for_readmissions(patch):
    class Anybodys(asyncio.Lock):
        async def acquire(self):
            return True

        def release(self): ...

    made = Publisher.__post_init__

    def make(publisher):
        made(publisher)
        publisher._turn = Anybodys()

    patch.setattr(Publisher, "__post_init__", make)


def lost_engines_stay_in_routing(patch):
    patch.setattr(LeastOutstandingTokensRouter, "lose", lambda router, engine: None)


@pytest.mark.parametrize(
    ("fault", "scenario"),
    [
        (a_lost_engine_is_used_as_soon_as_it_runs, Scenario(engines=2, losses=0.02, restarts=99, collections=5)),
        (
            nobody_looks_whether_the_trainer_stepped_meanwhile,
            Scenario(engines=2, losses=0.03, restarts=99, bound=3, mode="refresh", collections=9, streamed=True),
        ),
        (
            publications_do_not_wait_for_readmissions,
            Scenario(engines=2, losses=0.03, restarts=99, bound=3, mode="refresh", collections=9),
        ),
        (lost_engines_stay_in_routing, Scenario(engines=2, losses=0.02, restarts=99, collections=5)),
        (nothing_is_stale, Scenario(mode="refresh", bound=1, slow=0.2, batch=3, collections=5)),
        (one_collection_too_far_ahead, Scenario(bound=3, updates=2, batch=2, collections=5)),
        (given_back_tasks_are_forgotten, Scenario(mode="careless", bound=3, tasks=12, epochs=1, collections=99)),
        (mixed_groups_are_kept, Scenario(mode="careless", bound=3, collections=5)),
        (a_taken_group_stays, Scenario(bound=3, collections=5)),
        (any_number_is_dispatched, Scenario(bound=3, collections=5, concurrent_samples=4)),
        (admission_stays_closed, Scenario(bound=3, collections=5)),
        (buffered_groups_are_not_saved, Scenario(bound=9, collections=20, right=0.95, over_sampling=2.0)),
        (the_oldest_wait_until_they_are_too_old, Scenario(bound=3, collections=9, batch=3)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_caught(monkeypatch, fault, scenario):
    runs = [replace(scenario, seed=seed) for seed in range(40)]
    for each in runs:
        check(simulate(each))
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        for each in runs:
            check(simulate(each))


# What must hold of every run


def check(run):
    assert run.violations == []
    check_ending(run)
    check_dispatches(run)
    check_collections(run)
    check_staleness(run)
    check_versions(run)
    check_writers(run)
    check_saved(run)
    check_metrics(run)
    check_checkpoints(run)


def ran_out(run):
    return run.error is None and len(run.collections) < run.scenario.collections


def endings(run):
    """Group index → disposition and staleness."""
    return {index: tuple(rest) for _, kind, index, *rest in run.events if kind == "left"}


def versions_of(group):
    return {version for trace in group.traces for version in trace.weight_versions}


def check_ending(run):
    """By itself, with what was injected, or with what the scenario makes possible."""
    scenario, error = run.scenario, run.error
    if run.fatal is not None:
        # A cancellation may come when the run is over all the same.
        lost = scenario.losses and isinstance(error, EngineError)
        assert error is run.fatal or lost or isinstance(run.fatal, asyncio.CancelledError)
    elif isinstance(error, NothingToLearn):
        trained = {step.rollout_id for step in run.steps}
        empty = [collection.rollout_id not in trained for collection in run.collections]
        assert not any(trained) or empty[-run.session.rollout.max_empty_collections :] == [True] * 3
    elif isinstance(error, EvaluationError):
        assert scenario.refused or scenario.unscored or scenario.aborted
    elif error is not None:
        given_up = isinstance(error, EngineError) and scenario.losses
        assert given_up or (isinstance(error, EngineError | PluginError) and scenario.publication_faults)
    elif ran_out(run):
        assert scenario.epochs is not None
        assert any("the data ran out" in line for line in run.session.accounts.display.lines)
    if error is None and run.evaluated:
        steps = [step for step, _ in run.evaluated]
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (0, run.session.trainer.version)


def check_dispatches(run):
    """Each is another attempt and ends once. A task that leaves without an end of its own comes again, unless the run
    is over; once the data has run out, every task came to its end as often as there were epochs."""
    scenario, ended = run.scenario, endings(run)
    counts = run.session.events.ledger.summary()
    assert counts["in_flight"] == counts["queued"] == 0
    assert [index for _, kind, index, *_ in run.events if kind == "dispatched"] == list(range(counts["dispatched"]))
    assert sorted(index for _, kind, index, *_ in run.events if kind == "left") == list(range(counts["dispatched"]))
    told = Counter(disposition for disposition, _ in ended.values())
    assert {name: count for name, count in counts.items() if count and name != "dispatched"} == told
    attempts = defaultdict(list)
    for key, attempt in run.taken:
        attempts[key].append(attempt)
    assert all(found == list(range(len(found))) for found in attempts.values())
    again = told["returned"] + told["expired"] * scenario.retry
    assert run.given_back.total() <= again
    if ran_out(run):
        assert run.given_back.total() == again
        assert {key: len(found) - run.given_back[key] for key, found in attempts.items()} == {
            f"simulated:{row}": scenario.epochs for row in range(scenario.tasks)
        }


def check_collections(run):
    """Whole groups, each in one collection and trained on once, with all responses that were scored."""
    size, ended, seen = run.session.producer.buffer.size, endings(run), set()
    for number, collection in enumerate(run.collections):
        assert collection.rollout_id == number
        indices = [item.group.group_index for item in collection.groups]
        assert indices == sorted(indices) and not seen & set(indices)
        seen |= set(indices)
        passed = len(collection.passed)
        assert passed <= size.batch and len(indices) <= size.most
        assert passed == size.batch or len(indices) == size.most or run.scenario.epochs is not None
        steps = [step for step in run.steps if step.rollout_id == number]
        samples = [sample for step in steps for sample in step.samples]
        assert len({sample.slot for sample in samples}) == len(samples)
        if run.error is None:
            expected = {group.group_index: len(group.scored_rewards) for group in collection.passed}
            assert Counter(sample.group_index for sample in samples) == expected
            assert [ended[index][0] == "consumed" for index in indices] == [item.passed for item in collection.groups]
    if run.error is None:
        consumed = {index for index, (disposition, _) in ended.items() if disposition == "consumed"}
        assert consumed == {sample.group_index for step in run.steps for sample in step.samples}


def check_staleness(run):
    """At every optimizer step, and for every group also at the last step of its collection."""
    scenario, size = run.scenario, run.session.producer.buffer.size
    bound = scenario.updates - 1 if scenario.bound is None else scenario.bound
    used = defaultdict(list)
    for step in run.steps:
        for sample in step.samples:
            oldest = min(versions_of(run.groups[sample.group_index]))
            assert oldest <= sample.weight_version <= step.version <= oldest + bound
            used[sample.group_index].append(step.version - oldest)
    for collection in run.collections:
        for group in collection.passed:
            assert collection.version + size.updates - 1 - min(versions_of(group)) <= bound
    steps_of = Counter(step.rollout_id for step in run.steps)
    within_a_step = scenario.batch % scenario.updates == 0
    for disposition, staleness in endings(run).values():
        if disposition == "consumed":
            assert staleness <= bound
        elif disposition == "expired":
            assert staleness > bound
    for collection in run.collections:
        for group in collection.passed if run.error is None and within_a_step else ():
            told, (real,) = endings(run)[group.group_index][1], set(used[group.group_index])
            assert told >= real
            assert told == real or steps_of[collection.rollout_id] < scenario.updates


def check_versions(run):
    """Groups that are to be of one version, evaluations of their step's, engines that serve the newest."""
    if run.session.publisher.mode.homogeneous_groups:
        passed = [item.group for collection in run.collections for item in collection.groups if item.passed]
        assert all(len(versions_of(group)) <= 1 for group in passed)
    for step, groups in run.evaluated:
        assert {version for group in groups for version in versions_of(group)} <= {step}
    for version, served in run.engine_versions:
        assert served <= {version} if run.losses else served == {version}


def check_writers(run):
    """Scored once, left once and after it, with what became of it."""
    scored, left, ended = {}, set(), endings(run)
    for kind, observation_id, what, staleness in run.heard:
        if kind == "scored":
            assert observation_id not in scored
            scored[observation_id] = what.group_index
        else:
            assert observation_id in scored and observation_id not in left
            assert (what, staleness) == ended[scored[observation_id]]
            left.add(observation_id)
    assert left == set(scored)
    assert sorted(scored.values()) == sorted(run.groups)


def check_saved(run):
    """Every scored group is saved once; where the run ended by itself, with what became of it."""
    if isinstance(run.error, OSError):
        return
    saved = [item for groups in run.saved.values() for item in groups]
    assert sorted(item.group.group_index for item in saved) == sorted(run.groups)
    if run.error is None:
        for item in saved:
            disposition, _ = endings(run)[item.group.group_index]
            assert item.disposition == disposition


def check_metrics(run):
    """Every collection and every step that was trained on is in the metrics, once, however the run ended: a checkpoint
    or a model may hold it."""
    collections = [metrics for _, metrics in run.metrics if "rollout/collections" in metrics]
    assert [metrics["rollout/collections"] - 1 for metrics in collections] == run.completed
    for metrics in collections:
        generated = metrics["throughput/generation_seconds"] > 0
        assert ("throughput/generated_tokens_per_second" in metrics) is generated
    steps = [step for step, metrics in run.metrics if "train/loss" in metrics]
    assert steps == list(range(1, len(steps) + 1))
    assert run.session.accounts.summary.steps == run.session.trainer.version
    if not isinstance(run.error, TrainingError | OSError):
        assert len(steps) == len(run.steps) == run.session.trainer.version


def check_checkpoints(run):
    """The last one of a run that ended well, or was stopped, has everything behind it that was trained on."""
    assert run.kept == sorted(run.kept)
    ended_well = run.error is None or isinstance(run.error, asyncio.CancelledError)
    if run.scenario.save_interval is not None and ended_well and run.completed:
        assert run.kept[-1] == (run.session.trainer.version, run.completed[-1] + 1)
