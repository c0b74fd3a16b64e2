"""A producer whose data source has nothing at the moment looks again, and ends where there is nothing more."""

import asyncio

import pytest
from virtual_time import Deadlock, VirtualLoop

from reroll.api import RenderedPrompt, Task, TaskError, TaskSet
from reroll.rollouts.buffer import CollectionSize, GroupBuffer
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.producer import Producer
from reroll.tasks.cursor import Cursor
from reroll.tasks.mixture import Mixture, Source


class Nothing(TaskSet):
    """One stand-in, for which there is never anything."""

    name = "nothing"
    lazy = True
    online = True
    patience = 60.0

    def __len__(self):
        return 1

    def task(self, index):
        if index:
            raise IndexError(index)
        return Task("", {}, self.name, index, str(index))

    def bind(self, task, request, tries=0):
        return None


class Failing(Nothing):
    """A stream that gives one stand-in and then fails."""

    def __len__(self):
        raise TypeError("streaming")

    def __iter__(self):
        yield super().task(0)
        raise TaskError("the stream has broken off")


def collect(task_set, epochs, after_turn=lambda: None):
    """What a collection came to, on a clock whose time passes at once."""

    async def main():
        loop = asyncio.get_running_loop()
        cursor = Cursor(task_set, lambda task: RenderedPrompt("", (1,), "", ""), {}, 10, seed=0, epochs=epochs)
        producer = Producer(
            Mixture([Source("replayed", cursor, 1.0)], loop.time),
            None,  # nothing is ever generated
            GroupEvents([], None),
            [],
            GroupBuffer(CollectionSize(1, 1, 1, 0), 1),
            {},
            collections=1,
            concurrent=None,
            homogeneous=False,
            retry=True,
        )
        async with asyncio.TaskGroup() as tasks:
            producer.start(tasks)
            found = await producer.collect(0)
            producer.stop()
        return found

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(after_turn, most_turns=10_000)) as runner:
        return runner.run(main())


def test_a_source_that_runs_out_while_it_rests_ends_the_data():
    assert collect(Nothing(), epochs=1) is None


def test_a_task_set_that_fails_when_it_is_asked_again_ends_the_run():
    with pytest.raises(ExceptionGroup) as caught:
        collect(Failing(), epochs=None)
    assert "the stream has broken off" in str(caught.value.exceptions[0])


def test_a_source_that_never_has_anything_leaves_nothing_behind_however_long_it_is_asked():
    waiting = []

    def count():
        loop = asyncio.get_running_loop()
        waiting.append(len(asyncio.all_tasks(loop)) + len(loop._scheduled))

    with pytest.raises(Deadlock, match="no end in sight"):
        collect(Nothing(), None, count)
    assert max(waiting[5000:]) <= max(waiting[:5000])
