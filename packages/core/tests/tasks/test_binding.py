"""Lazily bound tasks: in threads, past what is skipped, and given up where there is nothing."""

import asyncio
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from reroll.api import Binding, PluginError, RenderedPrompt, TaskError
from reroll.tasks.binding import MOST_TRIES, Binder
from reroll.tasks.cursor import MOST_UNBOUND

sys.path.insert(0, str(Path(__file__).parent))

from cursor_cases import Numbers, cursor


class Lazy(Numbers):
    """Binds its stand-ins to texts as long as the number of tries."""

    lazy = True
    patience = 0.0

    def __init__(self, size=3):
        super().__init__(size)
        self.threads, self.asked = set(), []

    def bind(self, task, request, tries=0):
        self.threads.add(threading.current_thread().name)
        self.asked.append((task.source_row, request, tries))
        return Binding(replace(task, prompt="x" * (8 - tries)), metrics={"replay/source_step": 1.0})


def bind(walk, dispatch):
    return asyncio.run(walk.bind(dispatch))


def test_a_stand_in_is_bound_in_a_thread_of_its_own_and_rendered():
    tasks = Lazy()
    walk = cursor(tasks, max_prompt_len=10)
    dispatch = walk.take()
    assert dispatch.rendered is None and tasks.asked == []
    bound = bind(walk, dispatch)
    assert bound.rendered.text == bound.task.prompt == "x" * 8
    assert bound.binding.metrics == {"replay/source_step": 1.0}
    assert all(name.startswith("bind") for name in tasks.threads)


def test_the_event_loop_goes_on_while_a_task_is_bound():
    class Slow(Lazy):
        def bind(self, task, request, tries=0):
            release.wait(20)
            return super().bind(task, request, tries)

    release = threading.Event()
    walk = cursor(Slow())

    async def main():
        binding = asyncio.ensure_future(walk.bind(walk.take()))
        await asyncio.sleep(0)
        release.set()  # only a loop that goes on gets here
        return await asyncio.wait_for(binding, 20)

    assert asyncio.run(main()) is not None


def test_what_is_too_long_is_counted_and_another_is_bound_for_the_same_dispatch():
    tasks = Lazy()
    walk = cursor(tasks, max_prompt_len=5)
    bound = bind(walk, walk.take())
    assert len(bound.task.prompt) == 5
    assert walk.skipped == {"too_long": 3}
    assert [tries for _, _, tries in tasks.asked] == [0, 1, 2, 3]


def test_a_dispatch_for_which_everything_is_skipped_is_given_up():
    tasks = Lazy()
    walk = cursor(tasks, max_prompt_len=-1000)
    dispatch = walk.take()
    assert bind(walk, dispatch) is None
    assert walk.skipped == {"too_long": MOST_TRIES}
    assert "too_long" in walk.unbound(dispatch)


def test_an_empty_set_fails_the_dispatch_when_its_patience_is_over():
    class Empty(Lazy):
        patience = 0.2

        def bind(self, task, request, tries=0):
            return None

    walk = cursor(Empty())
    dispatch = walk.take()
    assert bind(walk, dispatch) is None
    assert "had nothing for 0.2 s" in walk.unbound(dispatch)


def test_many_waiting_dispatches_hold_up_no_other_thread():
    class Empty(Lazy):
        patience = 60.0

        def bind(self, task, request, tries=0):
            return None

    async def main():
        walk = cursor(Empty(50))
        waiting = [asyncio.ensure_future(walk.bind(walk.take())) for _ in range(50)]
        done = await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 20)
        for item in waiting:
            item.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return done

    assert asyncio.run(main()) == "done"


def test_what_the_template_refuses_costs_the_try_and_not_the_run():
    class Odd(Lazy):
        def bind(self, task, request, tries=0):
            return Binding(replace(task, prompt="refused" if tries < 2 else "fine"))

    def render(task):
        if task.prompt == "refused":
            raise TaskError("the chat template refused the messages")
        return RenderedPrompt(task.prompt, (1,), "", "")

    skipped = Counter()
    binder = Binder(Odd(), render, lambda task, rendered: None, skipped)
    binding, _ = asyncio.run(binder.bind(Odd().task(0), 0))
    assert binding.task.prompt == "fine" and skipped == {"not_rendered": 2}


@pytest.mark.parametrize("given", ["raises", "text"])
def test_a_task_set_that_breaks_its_contract_is_named(given):
    class Broken(Lazy):
        name = "broken"

        def bind(self, task, request, tries=0):
            if given == "raises":
                raise ZeroDivisionError("in a plugin")
            return "a text"

    walk = cursor(Broken())
    with pytest.raises(PluginError, match="'broken'"):
        bind(walk, walk.take())


def test_what_is_given_back_is_the_stand_in_as_its_next_attempt():
    tasks = Lazy(1)
    walk = cursor(tasks)
    bound = bind(walk, walk.take())
    walk.give_back(bound)
    again = walk.take()
    assert again.rendered is None and again.attempt == 1 and again.task == tasks.task(0)


def test_a_checkpoint_keeps_unfinished_stand_ins_which_are_bound_anew():
    walk = cursor(Lazy(2))
    bound = bind(walk, walk.take())
    other = cursor(Lazy(2))
    other.restore(walk.state([bound]))
    again = other.take()
    assert (again.place, again.attempt, again.rendered) == (bound.place, bound.attempt, None)
    assert bind(other, again).task == bound.task


def test_a_set_that_nothing_is_added_to_ends_the_run_when_none_of_its_tasks_can_be_dispatched():
    walk = cursor(Lazy(3), max_prompt_len=-1000)
    assert [bind(walk, walk.take()) for _ in range(2)] == [None, None]
    with pytest.raises(TaskError, match="no task of 'numbers' can be dispatched: .*too_long"):
        bind(walk, walk.take())


def test_a_set_that_grows_is_asked_for_ever():
    class Growing(Lazy):
        online = True

    walk = cursor(Growing(1), max_prompt_len=-1000)
    assert [bind(walk, walk.take()) for _ in range(3)] == [None] * 3


def test_one_task_that_can_be_dispatched_is_enough():
    class Mostly(Lazy):
        def bind(self, task, request, tries=0):
            return super().bind(task, request, tries) if task.source_row == 0 else None

    walk = cursor(Mostly(3), shuffle=False)
    assert [bind(walk, walk.take()) is not None for _ in range(9)] == [True, False, False] * 3


class Nothing(Lazy):
    """Has nothing; `online` where it may come to have something."""

    online = False

    def bind(self, task, request, tries=0):
        self.asked.append(request)
        return None


def test_a_set_that_grows_is_not_asked_by_each_of_those_that_wait_for_it():
    tasks = Nothing()
    tasks.online, tasks.patience = True, 0.3
    walk = cursor(tasks)

    async def main():
        return await asyncio.gather(*(walk.bind(walk.take()) for _ in range(50)))

    assert asyncio.run(main()) == [None] * 50
    assert len(tasks.asked) <= 4  # each of the threads at first, and once more at the end


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_set_of_which_nothing_can_be_dispatched_any_more_ends_the_run(size):
    walk = cursor(Nothing(size))
    for _ in range(min(size, MOST_UNBOUND) - 1):
        assert bind(walk, walk.take()) is None
    with pytest.raises(TaskError, match="no task of 'numbers' can be dispatched"):
        bind(walk, walk.take())


def test_one_that_grows_may_have_nothing_for_ever():
    tasks = Nothing(1)
    tasks.online = True
    walk = cursor(tasks)
    assert [bind(walk, walk.take()) for _ in range(3)] == [None] * 3
