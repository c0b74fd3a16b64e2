"""The cursor: which task comes next, and how often it has come before."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

from reroll.api import Binding, CheckpointError, PluginError, PromptFilter, RenderedPrompt, Task, TaskError, TaskSet
from reroll.tasks.binding import Binder
from reroll.tasks.state import check_schema, counts, entries, number

SCHEMA = 1
MOST_UNBOUND = 100
"""Stand-ins of a lazy set that no longer grows which turn out to stand for nothing, in a row, until the run is ended
for it."""
MOST_SKIPPED = 100_000
"""Prompts of a streaming set that are skipped in a row until the run is ended for it: such a set has no whole that
could have been skipped, and may never end."""


@dataclass(frozen=True)
class Place:
    """Where a task was met: the pass over the set, and the task's index; in a streaming set, which one it was."""

    epoch: int
    index: int


class Dispatch(NamedTuple):
    """A task to dispatch. `attempt` counts its earlier dispatches in this run; what no cursor gave has no place.

    What is not rendered yet is a lazy set's stand-in, and has to be bound. `source` names the data source, where there
    are several.
    """

    task: Task
    rendered: RenderedPrompt | None
    attempt: int
    place: Place | None = None
    source: str = ""
    binding: Binding | None = None


class Cursor:
    """Walks a task set in an order drawn anew for every epoch; skipped prompts are moved past.

    Args:
        task_set: sized sets are shuffled by `seed`, streaming ones keep their order.
        render: the shared renderer.
        filters: name → prompt filter; the first that gives a reason skips the prompt.
        max_prompt_len: longer prompts are skipped with the reason `too_long`.
        epochs: passes over the set, None for no end.
    """

    def __init__(
        self,
        task_set: TaskSet,
        render: Callable[[Task], RenderedPrompt],
        filters: Mapping[str, PromptFilter],
        max_prompt_len: int,
        seed: int,
        shuffle: bool = True,
        epochs: int | None = None,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self._task_set = task_set
        self._render = render
        self._filters = filters
        self._max_prompt_len = max_prompt_len
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._attempts: Counter[str] = Counter()
        self._given_back: deque[Dispatch] = deque()
        self._again: deque[Dispatch] = deque()
        """Dispatches that a checkpoint left unfinished: they come once more as the attempts that they were."""
        self._epoch = 0
        self._position = 0
        """Tasks of this epoch that the walk has passed."""
        self._walk = self._prompts()
        self._binder = Binder(task_set, render, self._skip, self.skipped)
        self._unbound = 0
        """Stand-ins in a row that could not be bound."""
        self.dry = False
        """The data had nothing more when it was last asked."""

    def take(self) -> Dispatch | None:
        """The next dispatch, one that was given back before a new one; None when the data has run out."""
        if self._again:
            return self._again.popleft()
        found = self._given_back.popleft() if self._given_back else next(self._walk, None)
        self.dry = found is None
        if found is None:
            return None
        attempt = self._attempts[found.task.key]
        self._attempts[found.task.key] += 1
        return found._replace(attempt=attempt)

    def give_back(self, dispatch: Dispatch) -> None:
        """The task is to be dispatched again, as its next attempt; of a lazy set, its stand-in is."""
        self.dry = False
        if self._task_set.lazy:
            assert dispatch.place is not None, "only dispatches of a cursor are given back to it"
            dispatch = Dispatch(self._task_set.task(dispatch.place.index), None, 0, dispatch.place)
        self._given_back.append(dispatch)

    def left(self, dispatch: Dispatch) -> None:
        """A dispatch is in flight no more; for what bounds their number."""

    @property
    def left_over(self) -> int:
        """Dispatches that a checkpoint left unfinished and that are still to come; they come first."""
        return len(self._again)

    @property
    def resting(self) -> float | None:
        """Seconds after which there may be something although the last take gave nothing."""
        return None

    async def bind(self, dispatch: Dispatch) -> Dispatch | None:
        """The dispatch as it can be generated from; None where its stand-in stands for nothing, see `unbound`.
        TaskError once there was nothing for as many in a row as a set has that no task is added to."""
        if dispatch.rendered is not None:
            return dispatch
        found = await self._binder.bind(dispatch.task, dispatch.attempt)
        if found is None:
            self._miss()
            return None
        self._unbound = 0
        binding, rendered = found
        return dispatch._replace(task=binding.task, rendered=rendered, binding=binding)

    def _miss(self) -> None:
        """TaskError once it is plain that nothing of the set can be dispatched, now or later."""
        self._unbound += 1
        if not self._task_set.online and self._unbound >= min(self._size() or MOST_UNBOUND, MOST_UNBOUND):
            raise TaskError(f"no task of {self._task_set.name!r} can be dispatched: {self._binder.why}")

    @property
    def patience(self) -> float:
        """Seconds that binding waits for something."""
        return self._task_set.patience

    def unbound(self, dispatch: Dispatch) -> str:
        """Why a dispatch could not be bound; where several could not, the reason of the last."""
        return f"task set {self._task_set.name!r}: {self._binder.why}"

    def state(self, unfinished: Iterable[Dispatch]) -> dict[str, Any]:
        """What `restore` needs to go on from here, as JSON.

        Args:
            unfinished: dispatched, but neither trained on nor ended in another way, in the order of their dispatch.
        """
        again = [*unfinished, *self._again]
        return {
            "schema": SCHEMA,
            "order": self._order_settings(),
            "epoch": self._epoch,
            "position": self._position,
            "again": [{**_place(item), "attempt": item.attempt} for item in again],
            "given_back": [_place(item) for item in self._given_back],
            "attempts": dict(self._attempts),
            "skipped": dict(self.skipped),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from where `state` was taken: first come the dispatches that were unfinished, as the same attempts,
        then those that were given back, then the walk. Asked for before the first take; CheckpointError if the state
        does not fit the task set."""
        assert not (self._attempts or self._position or self._epoch), "a cursor is restored before it is used"
        check_schema("cursor", state, SCHEMA)
        for key, now in self._order_settings().items():
            before = entries("cursor.order", state.get("order")).get(key)
            if before != now:
                raise CheckpointError(f"cursor.order.{key}: {before!r} in the checkpoint, {now!r} now")
        epoch, position = number("cursor.epoch", state.get("epoch")), number("cursor.position", state.get("position"))
        again, given_back = _places("again", state), _places("given_back", state)
        attempts = [number("cursor.again", item.get("attempt")) for item in state["again"]]
        tasks = self._tasks_at({place.index for place in (*again, *given_back)}, position)
        lazy = self._task_set.lazy
        rendered = {index: None if lazy else self._render(task) for index, task in tasks.items()}

        def dispatch(place: Place, attempt: int) -> Dispatch:
            return Dispatch(tasks[place.index], rendered[place.index], attempt, place)

        self._attempts = counts("cursor.attempts", state.get("attempts"))
        self.skipped.clear()
        self.skipped.update(counts("cursor.skipped", state.get("skipped")))
        # What a filter of now skips is not dispatched once more, whatever filters there were then.
        self._again.extend(self._kept(map(dispatch, again, attempts)))
        self._given_back.extend(self._kept(dispatch(place, 0) for place in given_back))
        self._epoch, self._position = epoch, position

    def _kept(self, dispatches: Iterable[Dispatch]) -> Iterator[Dispatch]:
        for found in dispatches:
            reason = self._skip(found.task, found.rendered) if found.rendered is not None else None
            if reason:
                self.skipped[reason] += 1
            else:
                yield found

    def _order_settings(self) -> dict[str, Any]:
        """What the order of the walk follows from."""
        size = self._size()
        shuffled = self._shuffle and size is not None
        return {"size": size, "seed": self._seed if shuffled else None, "shuffle": shuffled}

    def _tasks_at(self, indices: set[int], position: int) -> dict[int, Task]:
        """The tasks at these indices; CheckpointError if the set ends before one of them, or before `position`."""
        last = max(indices | {position - 1})
        size = self._size()
        if size is not None:
            if last < size:
                return {index: self._task_set.task(index) for index in indices}
            length = size
        else:
            found, length = {}, 0
            for index, task in enumerate(islice(self._task_set, last + 1)):
                length = index + 1
                if index in indices:
                    found[index] = task
            if length > last:
                return found
        field = "position" if position > length else "place"
        beyond = position if position > length else last
        raise CheckpointError(f"cursor.{field}: {beyond} is beyond the {length} tasks of {self._task_set.name!r}")

    def _prompts(self) -> Iterator[Dispatch]:
        while self._epochs is None or self._epoch < self._epochs:
            kept = self._position > 0  # in mid-epoch the walk stands nowhere but behind a prompt that it gave
            in_a_row = 0
            for index, task in self._order(self._epoch, self._position):
                self._position += 1
                if self._task_set.lazy:
                    kept = True
                    yield Dispatch(task, None, 0, Place(self._epoch, index))
                    continue
                rendered = self._render(task)
                if reason := self._skip(task, rendered):
                    self.skipped[reason] += 1
                    in_a_row += 1
                    if in_a_row == MOST_SKIPPED and self._size() is None:
                        raise TaskError(f"{in_a_row} prompts of {self._task_set.name!r} in a row: {self._reasons()}")
                    continue
                kept, in_a_row = True, 0
                yield Dispatch(task, rendered, 0, Place(self._epoch, index))
            if not kept:
                raise TaskError(f"no task of {self._task_set.name!r} can be dispatched: {self._reasons()}")
            self._epoch, self._position = self._epoch + 1, 0

    def _reasons(self) -> str:
        """Why prompts were skipped since the run began, for one that can dispatch nothing."""
        if not self.skipped:
            return "it is empty"
        listed = ", ".join(f"{reason}: {count}" for reason, count in self.skipped.most_common())
        return f"all of them are skipped ({listed})"

    def _order(self, epoch: int, position: int) -> Iterator[tuple[int, Task]]:
        """Index and task from `position` on."""
        size = self._size()
        if size is None:
            yield from islice(enumerate(self._task_set), position, None)
            return
        order = list(range(size))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
        for index in order[position:]:
            yield index, self._task_set.task(index)

    def _size(self) -> int | None:
        """Number of tasks, None for a streaming set."""
        try:
            return len(self._task_set)
        except TypeError:
            return None

    def _skip(self, task: Task, rendered: RenderedPrompt) -> str | None:
        return skip_reason(task, rendered, self._max_prompt_len, self._filters)


def skip_reason(
    task: Task, rendered: RenderedPrompt, max_prompt_len: int, filters: Mapping[str, PromptFilter]
) -> str | None:
    """Why a prompt is not generated from; None where it is."""
    if len(rendered.token_ids) > max_prompt_len:
        return "too_long"
    for name, prompt_filter in filters.items():
        try:
            reason = prompt_filter.skip(task, rendered)
        except Exception as error:
            raise PluginError(f"prompt filter {name!r} raised {type(error).__name__}: {error}") from error
        if reason:
            return f"{name}: {reason}"
    return None


def _place(dispatch: Dispatch) -> dict[str, int]:
    assert dispatch.place is not None, "only dispatches of a cursor are given back to it"
    return asdict(dispatch.place)


def _places(name: str, state: Mapping[str, Any]) -> list[Place]:
    listed = state.get(name)
    if not isinstance(listed, list):
        raise CheckpointError(f"cursor.{name}: {listed!r} is no list")
    where = f"cursor.{name}"
    items = [entries(where, item) for item in listed]
    return [Place(number(where, item.get("epoch")), number(where, item.get("index"))) for item in items]
