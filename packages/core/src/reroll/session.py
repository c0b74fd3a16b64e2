"""What the loop does with a run's parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from reroll.accounts import Accounts
from reroll.api import (
    Advantage,
    Decision,
    Disposition,
    Engine,
    PublicationReport,
    RunContext,
    Sample,
)
from reroll.checkpoints.saver import Checkpointer
from reroll.checkpoints.state import RunState
from reroll.placement.colocation import TakingTurns
from reroll.publication.publisher import Publisher
from reroll.publication.recovery import Recovery
from reroll.rollouts.buffer import Collection, FinishedGroup
from reroll.rollouts.config import EvalSection, RolloutSection
from reroll.rollouts.evaluation import Evaluator
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.groups import GroupMaker
from reroll.rollouts.producer import Producer
from reroll.rollouts.replayed import SavedCollections
from reroll.tasks.cursor import Cursor
from reroll.tasks.mixture import Mixture
from reroll.traces.names import ROLLOUTS, UNUSED
from reroll.traces.samples import collection_samples, unweighted_samples
from reroll.traces.saved import SavedGroup, mark_complete, save_groups, write_traces
from reroll.training.config import ObjectiveSection
from reroll.training.trainer import Trainer
from reroll.workers.together import first_cause, uninterrupted


@dataclass
class Session:
    """Everything that the loop works with."""

    rollout: RolloutSection
    objective: ObjectiveSection
    evaluation: EvalSection
    context: RunContext
    cursor: Cursor | Mixture
    maker: GroupMaker
    producer: Producer | SavedCollections
    events: GroupEvents
    advantage: Advantage
    evaluators: list[Evaluator]
    trainer: Trainer
    engines: list[Engine]
    publisher: Publisher | TakingTurns
    recovery: Recovery
    accounts: Accounts
    checkpoints: Checkpointer | None = None
    """None where the run makes none."""
    turns: TakingTurns | None = None
    """Where engines and trainer share devices."""
    exit_after: int | None = None
    """Collections after which this start ends, without training on any; None trains."""
    _evaluated: dict[str, int] = field(default_factory=dict)
    _collected: Collection | None = None
    """What was taken for the trainer, until it is trained on."""
    _unreported: tuple[Collection, list[dict[str, Any]]] | None = None
    """What was trained on and is not in the metrics yet: the collection, and its steps."""
    _stopped: dict[str, Any] = field(default_factory=dict)
    """Cursor and counts at the moment at which the producer was stopped."""
    _trained: int = field(init=False)
    """Collections that are trained on."""

    def __post_init__(self) -> None:
        self._trained = self.context.start_rollout_id

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[None]:
        """Groups are made in here and engines watched, and a failure of either ends what is done in here. However that
        ends, every dispatch has ended after it, and scored groups that no collection took are saved."""
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    self.producer.start(tasks)
                    self.recovery.start(tasks)
                    yield
                finally:
                    self._stopped = self._moving_state()
                    self.producer.stop()
                    self.recovery.stop()
        except BaseExceptionGroup as error:
            cause = first_cause(error)
            raise cause from cause.__cause__
        finally:
            if self._unreported is not None:  # the run ends before what it trained on last is published
                self.report(*self._unreported, None)
            self._put_away_rest()

    def _put_away_rest(self) -> None:
        expired, queued = self.producer.leftovers()
        for item in queued:
            self.events.left(item.group.group_index, item.leaves("returned"))
        self.events.return_rest()
        rest = [*_saved(expired, "expired"), *_saved(queued, "returned")]
        path = self.context.output / ROLLOUTS / UNUSED
        try:
            if rest:
                write_traces(path, rest)
        except OSError as error:  # must not hide what ended the run
            self.accounts.display.warn(f"{len(rest)} unused groups could not be saved in {path}: {error}")

    @property
    def collections(self) -> range:
        """Numbers of the collections that this start of the run is to train on."""
        return range(self.context.start_rollout_id, self.rollout.num_rollout)

    def restore(self, state: RunState) -> None:
        """Goes on with what an earlier start of the run had counted and evaluated."""
        self.cursor.restore(state.cursor)
        self.events.restore(state.events)
        self.accounts.restore(state.summary)
        self._evaluated = dict(state.evaluations)

    async def checkpoint(self, collection: Collection, last: bool = False) -> None:
        """Makes a checkpoint if one is due after this collection; after the `last` one of this start it always is."""
        done = collection.rollout_id + 1
        if self.checkpoints is not None and (
            last or (self.checkpoints.is_due(done) and done < self.rollout.num_rollout)
        ):
            await self._make_checkpoint(done, self._moving_state())

    async def checkpoint_interrupted(self) -> None:
        """The run was stopped while nothing was wrong with it: what was trained on is kept, and what was under way is
        dispatched again by the next start."""
        if self.checkpoints is None or self._trained == self.context.start_rollout_id:
            return
        await self._make_checkpoint(self._trained, self._stopped)

    def _moving_state(self) -> dict[str, Any]:
        """Cursor and counts, for a start that dispatches again what has neither been trained on nor left."""
        collected = [item.dispatch for item in self._collected.groups] if self._collected else []
        unfinished = [item for item in (*collected, *self.producer.unfinished()) if item.place]  # no replayed ones
        return {"cursor": self.cursor.state(unfinished), "events": self.events.state()}

    async def wait_for_checkpoints(self) -> None:
        """Until what is being written is whole; the summary says so."""
        if self.checkpoints is not None:
            await self.checkpoints.wait()
            self.finish_summary()

    async def _make_checkpoint(self, done: int, moving: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        begun = self.checkpoints.begun
        if begun is not None and (begun.collection, begun.evaluations) == (done, self._evaluated):
            await self.checkpoints.wait()
            if self.checkpoints.last is not None and not self.checkpoints.missed_last:
                return
        self.finish_summary()
        await self.checkpoints.save(
            self.trainer.version,
            done,
            **moving,
            summary=self.accounts.summary.state(),
            evaluations=dict(self._evaluated),
        )

    async def collect(self) -> Collection | None:
        """The next collection, or None when the data has run out."""
        self.accounts.collecting()
        collection = await self.producer.collect(self.trainer.version)
        self._collected = collection
        if collection is not None:
            self.accounts.warn_of_failures(item.group for item in collection.groups)
        return collection

    async def only_generate(self, count: int) -> None:
        """Saves the next `count` collections, as whole as those that are trained on."""
        for rollout_id in self.collections[:count]:
            collection = await self.collect()
            if collection is None:
                self.accounts.tell_end_of_data(rollout_id)
                break
            self._consume(collection, await self.save(collection))
            self.report(collection, [], None)
        self.accounts.summary.message = f"debug.exit_after_rollout = {count}: collections were saved and not trained on"

    async def train(self, collection: Collection) -> list[dict[str, Any]]:
        """Metrics of the collection's optimizer steps. While the trainer works, every trace is saved, whatever was
        decided about it. Steps that have begun go on to their end, even if the run is stopped: the trainer completes
        them in any case, and what it has completed will be in the checkpoint and the exported model."""
        saving = asyncio.create_task(self.save(collection))
        training: asyncio.Task[list[dict[str, Any]]] | None = None
        try:
            if self.turns is not None and collection.passed:
                await self.turns.to_trainer()
            training = asyncio.create_task(self._steps(await self.samples(collection)))
            await uninterrupted(training)
        except BaseException as error:
            try:
                await self._settle(collection, saving, training)
            except Exception as trouble:  # must not hide what ended the run
                error.add_note(f"the collection could not be saved either: {trouble}")
            raise
        await self._settle(collection, saving, training)
        return training.result()

    async def _steps(self, samples: list[Sample]) -> list[dict[str, Any]]:
        if samples:
            return await self.trainer.train(samples)
        if self.turns is not None:
            await self.turns.to_engines(self.trainer.version)
        return []

    async def _settle(
        self,
        collection: Collection,
        saving: asyncio.Task[int],
        training: asyncio.Task[list[dict[str, Any]]] | None,
    ) -> None:
        """A collection that was trained on, and whose traces are saved, is consumed and to be reported, also where the
        run is being stopped."""
        try:
            await uninterrupted(saving)
        finally:
            if _succeeded(saving) and training is not None and _succeeded(training):
                self._consume(collection, saving.result())
                self._unreported = (collection, training.result())

    async def save(self, collection: Collection) -> int:
        """Keeps the collection's traces on disk and gives their number; in a thread, so that answers and requests go
        on meanwhile. The marker that the step is whole comes when it has been trained on."""
        groups = [*_saved(collection.expired, "expired"), *_saved(collection.groups, "consumed")]
        groups.sort(key=lambda saved: saved.group.group_index)
        return await asyncio.to_thread(save_groups, self.context.output, collection.rollout_id, groups)

    async def samples(self, collection: Collection) -> list[Sample]:
        """What the trainer gets: the samples of the groups that passed, in the order of dispatch."""
        slots = [place * self.rollout.n_samples_per_prompt for place in collection.places()]
        mask_truncated = self.objective.mask_truncated_completions
        penalties: dict[int, float] = {}
        if self.objective.kl_coef:
            scored = unweighted_samples(collection.passed, slots)
            found = await self.trainer.reference_divergence(scored, keep=not mask_truncated)
            penalties = {slot: self.objective.kl_coef * value for slot, value in found.items()}
        return collection_samples(
            collection.passed, slots, self.advantage, mask_truncated=mask_truncated, penalties=penalties
        )

    def _consume(self, collection: Collection, traces: int) -> None:
        """Ends every dispatch of a collection that was trained on, and marks its file, which holds `traces`, whole."""
        for item, staleness in zip(collection.groups, collection.staleness(), strict=True):
            self.events.left(item.group.group_index, item.leaves("consumed"), staleness)
        mark_complete(self.context.output, collection.rollout_id, traces)
        self._collected, self._trained = None, collection.rollout_id + 1

    async def evaluate(self, every_set: bool = False) -> None:
        """Runs the evaluation sets that are due at this step; a set never runs twice at one step."""
        step = self.trainer.version
        for evaluator in self.evaluators:
            name = evaluator.settings.name
            interval = evaluator.settings.eval_interval or self.evaluation.eval_interval
            last = self._evaluated.get(name)
            due = interval is not None and step // interval > (last or 0) // interval
            if last == step or not (every_set or due):
                continue
            self._evaluated[name] = step
            self.accounts.display.phase("evaluating")
            begun = asyncio.get_running_loop().time()
            self.producer.evaluate(begins=True)
            result, groups = await evaluator.run(step)
            self.accounts.warn_of_failures(groups)
            path = self.context.output / "eval" / name / f"step_{step}" / "rollouts.jsonl"
            saved = [SavedGroup(group, Decision("passed")) for group in groups]
            if result is not None:
                await asyncio.to_thread(write_traces, path, saved)
            self.producer.evaluate(begins=False)
            self.accounts.evaluated(step, result, asyncio.get_running_loop().time() - begun)

    def report(
        self, collection: Collection, steps: Sequence[dict[str, Any]], publication: PublicationReport | None
    ) -> None:
        """Metrics of one collection to trackers, display and summary."""
        self._unreported = None
        self.accounts.collected(collection, steps, publication, self.trainer.version)

    def finish_summary(self) -> None:
        self.accounts.finish(self.trainer.version)
        if self.checkpoints is not None:
            self.accounts.summary.checkpoint = self.checkpoints.last or self.accounts.summary.checkpoint
            self.accounts.summary.missed_checkpoints = self.checkpoints.missed


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _saved(groups: Iterable[FinishedGroup], disposition: Disposition) -> list[SavedGroup]:
    return [SavedGroup(item.group, item.decision, item.leaves(disposition)) for item in groups]
