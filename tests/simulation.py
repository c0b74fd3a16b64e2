"""Whole runs on a virtual clock: the real loop, session, producer, buffer, router and publisher, around simulated
engines, trainer and verifiers. A scenario decides everything that happens; the run keeps all of it."""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from unittest.mock import patch

from contexts import CONTEXT
from simulated_parts import (
    HELD_OUT,
    MODES,
    Metrics,
    Quiet,
    Recorder,
    SimulatedEngine,
    SimulatedRenderer,
    SimulatedScorer,
    SimulatedStore,
    SimulatedTasks,
    SimulatedTrainer,
    SimulatedTransport,
)
from virtual_time import VirtualLoop, where

from reroll.accounts import Accounts
from reroll.api import (
    EngineError,
    PluginError,
    RerollError,
    Selection,
    TrainingError,
    WorkerDied,
)
from reroll.checkpoints.config import CheckpointSection
from reroll.checkpoints.saver import Checkpointer
from reroll.checkpoints.state import Identity, RunState
from reroll.launch.program import forget_cancellation
from reroll.loop import train
from reroll.publication.publisher import Publisher
from reroll.publication.recovery import Recovery
from reroll.reporting.summary import Summary
from reroll.reporting.trackers import Trackers
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.async_config import AsyncSection
from reroll.rollouts.buffer import GroupBuffer
from reroll.rollouts.config import EvalSection, EvalSet, RolloutSection
from reroll.rollouts.evaluation import Evaluator
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.filters import ZeroVariance
from reroll.rollouts.groups import GroupMaker, GroupPlan
from reroll.rollouts.harnesses import SingleTurn
from reroll.rollouts.producer import Producer
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.session import Session
from reroll.tasks.cursor import Cursor
from reroll.training.advantages import Grpo
from reroll.training.config import ObjectiveSection


@dataclass(frozen=True)
class Scenario:
    """A run, and what goes wrong in it. Rates are chances of a request, of a response or of a step of a publication.

    Attributes:
        bound: staleness that is allowed; None is synchronous.
        epochs: passes over the tasks, None for no end.
        right: chance that a response is right; groups that agree are filtered.
        unscored: a verifier fails.
        slow: a request takes so long that others overtake it for several collections.
        hopeless: every response to the first task is aborted.
        losses: an engine ends, in the middle of a token or of any other call.
        lost_again: an engine that is started again ends, or does not start.
        restarts: of one engine, at most.
        save_interval: collections between two checkpoints, None for none; async_save: training does not wait for them.
        streamed: tensors leave the trainer when an engine takes them, not when they are offered.
        pace: requests take so many times as long as everything else.
        fatal: a place and the number of the visit to it that ends the run, see `Run.reaches`; with "cancelled" the
            second at which it is cancelled.
    """

    seed: int = 0
    collections: int = 3
    batch: int = 2
    siblings: int = 2
    updates: int = 1
    bound: int | None = None
    over_sampling: float = 1.0
    capacity_factor: float = 2.0
    concurrent_samples: int | None = None
    retry: bool = True
    engines: int = 1
    mode: str = "barrier"
    tasks: int = 5
    epochs: int | None = None
    eval_tasks: int = 0
    eval_interval: int | None = None
    right: float = 0.5
    unscored: float = 0.0
    refused: float = 0.0
    aborted: float = 0.0
    slow: float = 0.0
    hopeless: bool = False
    publication_faults: float = 0.0
    losses: float = 0.0
    lost_again: float = 0.0
    restarts: int = 3
    streamed: bool = False
    save_interval: int | None = None
    async_save: bool = True
    fatal: tuple[str, int] | None = None
    tokens: int = 3
    pace: float = 1.0
    delays: tuple[float, ...] = (0.0, 0.5, 1.0, 1.0, 2.0, 3.7)


class Run:
    """One run: its parts, and what is drawn for it. What is only of interest to an observer passes by.

    Attributes:
        fatal: the error of `Scenario.fatal`, once it was raised.
        error: what ended the run, if anything did.
    """

    def __init__(self, scenario):
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self.session = None
        self.fatal = None
        self.error = None
        self._visits = Counter()

    def chance(self, rate):
        return rate > 0 and self.random.random() < rate

    async def delay(self, factor=1.0):
        await asyncio.sleep(factor * self.random.choice(self.scenario.delays))

    def takes_request(self, engine):
        """What must hold whenever an engine gets one."""

    async def publication_step(self, failure):
        await self.delay()
        if self.chance(self.scenario.publication_faults):
            raise EngineError(failure)

    def reaches(self, place):
        """Raises what the scenario wants there."""
        self._visits[place] += 1
        if self.scenario.fatal == (place, self._visits[place]):
            self.fatal = {
                "engine": EngineError("an engine stopped"),
                "worker": WorkerDied("engine-0", "ended"),
                "stage": WorkerDied("engine-0", "ended while it was loading"),
                "scorer": PluginError("a verifier broke its contract"),
                "trainer": TrainingError("a step was not finite"),
                "save": OSError("the disk is full"),
            }[place]
            raise self.fatal

    async def whole(self, writers):
        self.session = make_session(self, writers)
        self.begins()
        if self.scenario.fatal and self.scenario.fatal[0] == "cancelled":
            asyncio.get_running_loop().call_later(self.scenario.fatal[1], self._cancel, asyncio.current_task())
        try:
            await train(self.session)
        except asyncio.CancelledError:
            forget_cancellation()
            await self.session.checkpoint_interrupted()
            raise
        finally:
            if self.session.checkpoints is not None:
                await self.session.checkpoints.close()
            self.ends()

    def _cancel(self, task):
        self.fatal = asyncio.CancelledError()
        task.cancel()

    def begins(self): ...
    def ends(self): ...
    def after_turn(self): ...
    def took(self, dispatch): ...
    def gave_back(self, dispatch): ...
    def dispatched(self, group_index): ...
    def scored(self, group, decision): ...
    def left(self, group_index, disposition, staleness): ...
    def asks_for_collection(self): ...
    def collected(self, collection): ...
    def stepped(self, version, samples): ...
    def trained_on(self, collection): ...
    def save_groups(self, output, rollout_id, groups): ...
    def write_traces(self, path, groups): ...
    def mark_complete(self, output, rollout_id, count): ...


@dataclass
class Step:
    """An optimizer step: the trainer's version when it began, and what it was given."""

    rollout_id: int
    version: int
    samples: list


class WatchedRun(Run):
    """Keeps everything that happens.

    Attributes:
        events: dispatches, scored groups and endings, each with its time.
        groups: group index → scored group.
        collections, steps: what was handed out, and what was trained on.
        engine_versions: the trainer's version and those of the engines in use, whenever a collection is asked for.
        published: the last version that was, or 0.
        losses: (second, address) of every loss that the publisher heard of.
        taken: task and attempt of every dispatch; given_back: how often a task was.
        completed: collections that are marked as trained on; metrics: what trackers got, with its step.
        kept: version and next collection of every checkpoint.
        saved: rollout id (None: of no collection) → saved groups.
        evaluated: step and groups of every evaluation.
        heard: what record writers were told.
        most_in_flight, most_buffered: groups, at any moment.
        violations: what was wrong at some moment.
    """

    def __init__(self, scenario):
        super().__init__(scenario)
        self.events = []
        self.groups = {}
        self.collections = []
        self.steps = []
        self.engine_versions = []
        self.published = 0
        self.losses = []
        self.taken = []
        self.given_back = Counter()
        self.saved = defaultdict(list)
        self.evaluated = []
        self.heard = []
        self.most_in_flight = 0
        self.most_buffered = 0
        self.violations = []
        self.completed = []
        self.kept = []
        self.metrics = []
        self._training = 0
        self._allowed = 0

    @property
    def trained(self):
        """What was trained on, by step, without anything that two equal runs would not share."""
        return [
            (step.rollout_id, step.version, [(s.slot, s.group_index, s.weight_version, s.reward) for s in step.samples])
            for step in self.steps
        ]

    def begins(self):
        size = self.session.producer.buffer.size
        self._allowed = (size.ahead + 1) * size.batch
        self.session.publisher.fleet.on_loss.append(self._lost)

    def _lost(self, engine, reason):
        self.losses.append((asyncio.get_running_loop().time(), engine.address))

    def takes_request(self, engine):
        fleet = self.session.publisher.fleet
        self._expect(fleet.engines.index(engine) not in fleet.absent, "a request goes to an engine that is lost")
        self._expect(engine.tensors == engine.version, "an engine serves other weights than it says")
        self._expect(engine.version >= self.published, "an engine is routed on old weights")

    def ends(self):
        self.session.finish_summary()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self._expect(not left, f"tasks outlive the run: {'; '.join(map(where, left))}")
        self._expect(not self.session.maker.admission.in_flight, "a group is still admitted")
        for engine in self.session.engines:
            self._expect(not self.session.maker.router.in_flight(engine), "a request is still routed")

    def took(self, dispatch):
        self.taken.append((dispatch.task.key, dispatch.attempt))

    def gave_back(self, dispatch):
        self.given_back[dispatch.task.key] += 1

    def dispatched(self, group_index):
        self._happens("dispatched", group_index)

    def scored(self, group, decision):
        self.groups[group.group_index] = group
        rewards = tuple(group.rewards)
        self._happens("scored", group.group_index, group.task.key, group.attempt, decision.outcome, rewards)

    def left(self, group_index, disposition, staleness):
        self._happens("left", group_index, disposition, staleness)

    def asks_for_collection(self):
        fleet = self.session.publisher.fleet
        served = {fleet.engines[number].version for number in fleet.present()}
        self.engine_versions.append((self.session.trainer.version, served))

    def collected(self, collection):
        if collection is not None:
            stale = [item for item in collection.groups if collection.size.is_stale(item.group, collection.version)]
            assert not stale, "a collection holds groups that are too old, passed or not"
            self.collections.append(collection)
            self._training = len(collection.groups)

    def stepped(self, version, samples):
        self.steps.append(Step(self.collections[-1].rollout_id, version, samples))

    def trained_on(self, collection):
        self._training = 0

    def mark_complete(self, output, rollout_id, count):
        self.completed.append(rollout_id)

    def save_groups(self, output, rollout_id, groups):
        self.reaches("save")
        self.saved[rollout_id] += groups

    def write_traces(self, path, groups):
        if path.name == "unused_rollouts.jsonl":
            self.saved[None] += groups
        else:
            self.evaluated.append((int(path.parent.name.removeprefix("step_")), [saved.group for saved in groups]))

    def _happens(self, *event):
        """What must hold after every event."""
        self.events.append((asyncio.get_running_loop().time(), *event))
        producer, ledger = self.session.producer, self.session.events.ledger
        counts = ledger.summary()
        self._expect(counts.pop("dispatched") == sum(counts.values()), "a dispatch is in no place or in two")
        passed = sum(item.passed for item in producer.buffer.groups)
        self._expect(producer.buffer.passed == passed, "the buffer has miscounted")
        self._expect(len(self.taken) == ledger.dispatched, "a task was taken and not dispatched")

    def after_turn(self):
        """What must hold while nothing is on its way from one place to another."""
        if self.session is None:
            return
        producer, buffer, ledger = self.session.producer, self.session.producer.buffer, self.session.events.ledger
        buffered, in_flight, most = len(buffer), producer.in_flight, self.scenario.concurrent_samples
        self.most_buffered = max(self.most_buffered, buffered)
        self.most_in_flight = max(self.most_in_flight, in_flight)
        self._expect(buffered <= buffer.capacity, "the buffer is above its capacity")
        self._expect(most is None or in_flight * self.scenario.siblings <= most, "too many samples are in flight")
        self._expect(in_flight + buffer.passed <= self._allowed, "too much is under way")
        if not producer.ending and self.fatal is None:
            alive = in_flight + buffered + self._training
            self._expect(alive == ledger.in_flight + ledger.queued, "the ledger has lost sight of a group")

    def _expect(self, holds, otherwise):
        if not holds:
            self.violations.append(otherwise)


# The real parts, telling the run what they do


class WatchedEvents(GroupEvents):
    def __init__(self, writers, run):
        super().__init__(writers, run)
        self._run = run

    def dispatched(self, source=""):
        group_index = super().dispatched(source)
        self._run.dispatched(group_index)
        return group_index

    def scored(self, group, decision):
        super().scored(group, decision)
        self._run.scored(group, decision)

    def left(self, group_index, disposition, staleness=0):
        super().left(group_index, disposition, staleness)
        self._run.left(group_index, disposition, staleness)


class WatchedCursor(Cursor):
    def __init__(self, *arguments, run, **options):
        super().__init__(*arguments, **options)
        self._run = run

    def take(self):
        dispatch = super().take()
        if dispatch is not None:
            self._run.took(dispatch)
        return dispatch

    def give_back(self, dispatch):
        super().give_back(dispatch)
        self._run.gave_back(dispatch)


class WatchedProducer(Producer):
    ending = False

    async def _make(self, *arguments):
        try:
            await super()._make(*arguments)
        except BaseException:
            self.ending = True
            raise

    def stop(self):
        self.ending = True
        super().stop()


class WatchedPublisher(Publisher):
    run = None

    async def publish(self, version):
        report = await super().publish(version)
        self.run.published = version
        return report


class WatchedSession(Session):
    run = None

    async def collect(self):
        self.run.asks_for_collection()
        collection = await super().collect()
        self.run.collected(collection)
        return collection

    async def train(self, collection):
        steps = await super().train(collection)
        self.run.trained_on(collection)
        return steps


def simulate(scenario, writers=(Recorder,), most_turns=20_000):
    """The run, ended in one way or another."""
    run = WatchedRun(scenario)
    drive(run, writers, most_turns)
    return run


def drive(run, writers=(), most_turns=None):
    """Runs it to its end on a virtual clock; Deadlock if it has none within so many turns of the event loop."""
    loop = VirtualLoop(run.after_turn, most_turns)
    files = {
        "save_groups": run.save_groups,
        "write_traces": run.write_traces,
        "mark_complete": run.mark_complete,
    }
    with (
        patch.multiple("reroll.session", **files),
        patch.object(RunState, "write"),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        try:
            runner.run(run.whole(writers))
        except (RerollError, OSError, asyncio.CancelledError) as error:
            run.error = error


def make_checkpoints(run, trainer, display):
    scenario = run.scenario
    if scenario.save_interval is None:
        return None
    section = CheckpointSection(save_interval=scenario.save_interval, async_save=scenario.async_save)
    identity = Identity(run_id="simulation", seeds={}, data={}, model={})
    return Checkpointer(SimulatedStore(run), trainer, section, identity, {}, CONTEXT.attempt, display.warn)


def make_session(run, writers):
    """The parts of a run, put together as `reroll.assembly` does."""
    scenario = run.scenario
    rollout = RolloutSection(
        num_rollout=scenario.collections,
        rollout_batch_size=scenario.batch,
        n_samples_per_prompt=scenario.siblings,
        over_sampling_factor=scenario.over_sampling,
    )
    asynchronous = AsyncSection(
        fully_async=scenario.bound is not None,
        max_weight_staleness=scenario.bound,
        capacity_factor=scenario.capacity_factor,
        max_concurrent_samples=scenario.concurrent_samples,
    )
    size = asynchronous.size(rollout, scenario.updates)
    engines = [SimulatedEngine(f"engine-{number}", run) for number in range(scenario.engines)]
    router, admission, trainer, display = (
        LeastOutstandingTokensRouter(engines),
        GroupAdmission(),
        SimulatedTrainer(run),
        Quiet(),
    )
    maker = GroupMaker(
        harness=SingleTurn(),
        renderer=SimulatedRenderer(),
        router=router,
        admission=admission,
        scorer=SimulatedScorer(run),
        verifier_weights={},
        failure_policy="exclude",
        rollout_seed=scenario.seed,
    )
    cursor = WatchedCursor(
        SimulatedTasks(scenario.tasks),
        maker.renderer.render,
        {},
        max_prompt_len=10,
        seed=scenario.seed,
        epochs=scenario.epochs,
        run=run,
    )
    publisher = WatchedPublisher(
        mode=MODES[scenario.mode](),
        transport=SimulatedTransport(run),
        source=trainer,
        engines=engines,
        router=router,
        admission=admission,
        timeout=1e6,
        warn=display.line,
    )
    publisher.run = run
    recovery = Recovery(publisher, router, most=scenario.restarts, timeout=60.0, warn=display.line)
    events = WatchedEvents(writers, run)
    events.open(CONTEXT)
    plan = GroupPlan(0, scenario.siblings, rollout.sampling(0), rollout.max_context, "train")
    producer = WatchedProducer(
        cursor,
        maker,
        events,
        [ZeroVariance()],
        GroupBuffer(size, asynchronous.capacity(size)),
        {"": plan},
        collections=scenario.collections,
        concurrent=asynchronous.concurrent_groups(rollout),
        homogeneous=publisher.mode.homogeneous_groups,
        retry=scenario.retry,
    )
    held_out = EvalSet(name="held-out", task_set=Selection(name="simulated"))
    session = WatchedSession(
        rollout=rollout,
        objective=ObjectiveSection(),
        evaluation=EvalSection(eval_interval=scenario.eval_interval),
        context=CONTEXT,
        cursor=cursor,
        maker=maker,
        producer=producer,
        events=events,
        advantage=Grpo(),
        evaluators=[Evaluator(held_out, SimulatedTasks(scenario.eval_tasks, HELD_OUT), maker, rollout)]
        if scenario.eval_tasks
        else [],
        trainer=trainer,
        engines=engines,
        publisher=publisher,
        recovery=recovery,
        accounts=Accounts(
            context=CONTEXT,
            cursor=cursor,
            events=events,
            producer=producer,
            recovery=recovery,
            trackers=Trackers([Metrics(run)]),
            display=display,
            summary=Summary("simulation", CONTEXT.output),
        ),
        checkpoints=make_checkpoints(run, trainer, display),
    )
    session.run = run
    return session
