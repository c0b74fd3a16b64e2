"""The producer: keeps the engines at work, within the bounds, and hands out collections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reroll.api import Decision, Group, GroupFilter, RerollError
from reroll.rollouts.buffer import Collection, FinishedGroup, GroupBuffer
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.filters import decide
from reroll.rollouts.groups import GroupMaker, GroupPlan
from reroll.rollouts.rounds import Rounds
from reroll.rollouts.stopwatch import Stopwatch
from reroll.tasks.cursor import Cursor, Dispatch
from reroll.tasks.mixture import Mixture
from reroll.workers.together import cancelled_from_outside

MOST_RETURNS = 16
HOPELESS = Decision("aborted", f"handed back {MOST_RETURNS} times in a row")
"""Something keeps the task from ever being whole: it is generated no further time."""


class Producer:
    """Dispatches tasks, makes groups of them, and buffers those until a collection is asked for.

    How far it runs ahead follows from the staleness bound: with the trainer waiting, one collection and
    `size.ahead` more are under way; while it works, `size.ahead`. With `ahead` 0 generation and training take turns,
    and whole rounds are dispatched, so that equal runs make equal batches.

    Args:
        first: number of the first collection; those before it were taken from an earlier start of the run.
        collections: number of all collections of the run; nothing is dispatched beyond them.
        concurrent: most groups in flight.
        homogeneous: a group whose tokens come from several weight versions is generated again.
        retry: tasks of expired groups are dispatched again.
        plans: of every data source, by the name that its dispatches have.
        warn: hears of every data source that has nothing to give, when it first has not.
    """

    def __init__(
        self,
        cursor: Cursor | Mixture,
        maker: GroupMaker,
        events: GroupEvents,
        group_filters: Sequence[GroupFilter],
        buffer: GroupBuffer,
        plans: Mapping[str, GroupPlan],
        *,
        collections: int,
        concurrent: int | None,
        homogeneous: bool,
        retry: bool,
        first: int = 0,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.maker = maker
        self.cursor = cursor
        self.events = events
        self.buffer = buffer
        self.in_flight = 0
        """Groups between their dispatch and the buffer."""
        self.generated_tokens = 0
        self.generating = Stopwatch()
        """Runs while training groups are being generated."""
        self.blocked = Stopwatch()
        """Runs while none is and the trainer is busy: the staleness bound or the buffer lets nothing more in. Not
        during evaluations."""
        self.evaluating = False
        self.trainer_waiting = Stopwatch()
        """Runs while a collection is waited for."""
        self._filters = list(group_filters)
        self._plans = plans
        self._warn = warn
        self._warned: set[str] = set()
        self._rounds = Rounds(together=buffer.size.ahead == 0)
        self._collections_left = collections - first
        self._taken = first
        self._concurrent = concurrent
        self._homogeneous = homogeneous
        self._retry = retry
        self._returns: Counter[str] = Counter()
        self._expired: list[FinishedGroup] = []
        self._asked_version: int | None = None
        """The trainer's, while it waits for a collection."""
        self._resting: asyncio.Task[None] | None = None
        """Looks for data again where there was none at the moment."""
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._dispatches: dict[int, Dispatch] = {}
        """Of groups in flight, by group index."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """From here on groups are made, as tasks of that group, which any failure of theirs ends."""
        self._tasks = tasks
        self._dispatch()

    def evaluate(self, begins: bool) -> None:
        """An evaluation begins or ends: what stands still meanwhile does not wait for the trainer."""
        self.evaluating = begins
        self._account()

    def stop(self) -> None:
        """Nothing further is made; groups that are not finished are cancelled."""
        self._tasks = None
        if self._resting is not None:
            self._resting.cancel()
        for task in list(self._running):
            task.cancel()

    async def collect(self, version: int) -> Collection | None:
        """The next collection for a trainer at `version`, once there is one; None when the data has run out and
        everything that was dispatched has left."""
        assert self._collections_left, "no further collection was announced"
        self._asked_version = version
        self.trainer_waiting.enter()
        try:
            self._expire(self.buffer.expire(version))
            self._dispatch()
            while not self.buffer.ready and not (self.cursor.dry and not self.in_flight):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._asked_version = None
            self.trainer_waiting.leave()
        taken = self.buffer.take()
        if not taken:
            return None
        expired, self._expired = self._expired, []
        collection = Collection(self._taken, version, self.buffer.size, taken, expired)
        self._taken += 1
        self._collections_left -= 1
        self._dispatch()
        return collection

    def leftovers(self) -> tuple[list[FinishedGroup], list[FinishedGroup]]:
        """Scored groups that no collection holds, expired and queued ones; asked for when the run is over."""
        return list(self._expired), list(self.buffer.groups)

    def unfinished(self) -> list[Dispatch]:
        """What was dispatched and has neither been taken for a collection nor ended, in the order of dispatch."""
        queued = {item.group.group_index: item.dispatch for item in self.buffer.groups}
        return [dispatch for _, dispatch in sorted({**self._dispatches, **queued}.items())]

    def _dispatch(self) -> None:
        round_under_way = self.buffer.size.ahead == 0 and self.in_flight > 0
        begun: dict[int, Dispatch] = {}
        while self._tasks is not None and not round_under_way and self._admits() and not self._busy():
            dispatch = self.cursor.take()
            if dispatch is None:
                self._look_again(self.cursor.resting)
                break
            group_index = self.events.dispatched(dispatch.source)
            self.in_flight += 1
            self._dispatches[group_index] = dispatch
            begun[group_index] = dispatch
            task = self._tasks.create_task(self._make(group_index, dispatch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._rounds.begin(begun)
        self._account()

    def _look_again(self, seconds: float | None) -> None:
        """Nothing else may happen until a source that had nothing has something."""
        if self._resting is not None:
            self._resting.cancel()
        assert self._tasks is not None, "only a producer that is started looks for data"
        self._resting = None if seconds is None else self._tasks.create_task(self._after_rest(seconds))

    async def _after_rest(self, seconds: float) -> None:
        """A task and no timer of the loop, so that a task set that fails now ends the run as it does elsewhere."""
        await asyncio.sleep(seconds)
        self._resting = None  # not to be cancelled by its own dispatch
        self._dispatch()
        self._changed.set()  # whoever waits for a collection learns where the data has run out meanwhile

    def _admits(self) -> bool:
        """Whether the staleness bound and the buffer let one more group in."""
        size, buffer = self.buffer.size, self.buffer
        collections = min(size.ahead + (self._asked_version is not None), self._collections_left)
        return (
            self.in_flight + len(buffer) < buffer.capacity  # so that each finds room when it is finished
            and self.in_flight + buffer.passed < collections * size.batch
            and self.in_flight + len(buffer) < collections * size.most
        )

    def _busy(self) -> bool:
        return self._concurrent is not None and self.in_flight >= self._concurrent

    def _account(self) -> None:
        """Engines that stand still although there is data, while the trainer waits for nothing, wait for it."""
        idle = self._asked_version is None and not self.evaluating and not self.generating.running
        more = not self.cursor.dry and self._collections_left > 0
        self.blocked.run(idle and more and not self._admits())

    async def _make(self, group_index: int, dispatch: Dispatch) -> None:
        """From the dispatch to the buffer, or to another ending."""
        try:
            bound = await self._rounds.bound(group_index, self.cursor.bind(dispatch))
            if bound is None:
                self._tell_unbound(dispatch)
                self.events.left(group_index, "failed")
            else:
                self._dispatches[group_index] = bound
                await self._generate(group_index, bound)
        except asyncio.CancelledError as error:
            if self._tasks is None or cancelled_from_outside():
                raise
            raise RerollError(f"group {group_index} was cancelled from within a plugin") from error
        finally:
            self.in_flight -= 1
            del self._dispatches[group_index]
            self.cursor.left(dispatch)
        self._dispatch()
        self._changed.set()

    async def _generate(self, group_index: int, dispatch: Dispatch) -> None:
        plan = replace(self._plans[dispatch.source], rollout_id=self._taken)
        self.generating.enter()
        self._account()
        try:
            group = await self.maker.generate(group_index, dispatch, plan)
        finally:
            self.generating.leave()
        self._account()
        self.generated_tokens += sum(trace.response_tokens for trace in group.traces)
        unusable = self._unusable(group)
        if unusable and self._returns[dispatch.task.key] < MOST_RETURNS:
            self._return(group_index, dispatch)
        else:
            self._returns.pop(dispatch.task.key, None)
            await self.maker.score(group, dispatch, plan)
            decision = HOPELESS if unusable else decide(group, self._filters)
            self._finish(FinishedGroup(group, decision, dispatch))

    def _tell_unbound(self, dispatch: Dispatch) -> None:
        if dispatch.source not in self._warned:
            self._warned.add(dispatch.source)
            self._warn(f"{self.cursor.unbound(dispatch)}; it is asked again as long as the run goes on (said once)")

    def _unusable(self, group: Group) -> bool:
        """Aborted responses, and mixed weights where a group must be of one version, are no fault of the task."""
        if any(trace.stop_condition == "abort" for trace in group.traces):
            return True
        return self._homogeneous and len({v for trace in group.traces for v in trace.weight_versions}) > 1

    def _return(self, group_index: int, dispatch: Dispatch) -> None:
        """The task is generated again. Nothing was scored, so that it is recorded once, when it is whole."""
        self._returns[dispatch.task.key] += 1
        self.events.left(group_index, "returned")
        self._give_back(dispatch)

    def _finish(self, finished: FinishedGroup) -> None:
        self.events.scored(finished.group, finished.decision)
        version = self._asked_version
        if version is not None and self.buffer.size.is_stale(finished.group, version):
            self._expire([finished])
        else:
            self.buffer.put(finished)

    def _expire(self, stale: Sequence[FinishedGroup]) -> None:
        """Groups that did not pass leave as what they are; no collection is to be filled with old ones."""
        for item in stale:
            version = self._asked_version
            assert version is not None, "groups grow old only for a trainer that asks"
            staleness = item.group.staleness(self.buffer.size.last_step(version))
            self.events.left(item.group.group_index, item.leaves("expired"), staleness)
            if self._retry and item.passed:
                self.events.retried += 1
                self._give_back(item.dispatch)
        self._expired += stale

    def _give_back(self, dispatch: Dispatch) -> None:
        self.cursor.give_back(dispatch)
