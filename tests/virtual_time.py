"""An event loop whose time passes at once where everything waits for it, so that a schedule of minutes takes
milliseconds, is the same every time, and fails instead of hanging."""

import asyncio
import math


class Deadlock(AssertionError):
    """Everything waits for something that never happens, or the run goes on for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Its time passes at once where everything waits for it. It has neither files nor threads.

    Args:
        after_turn: called after every turn.
        most_turns: of a run that has an end.
    """

    def __init__(self, after_turn=lambda: None, most_turns=None):
        super().__init__()
        self.now = 0.0
        self._selector = self
        self._after_turn = after_turn
        self._turns_left = most_turns or math.inf

    def time(self):
        return self.now

    def select(self, timeout):
        self._after_turn()
        self._turns_left -= 1
        if timeout is None or not self._turns_left:
            self._after_turn = lambda: None
            self._turns_left = -1
            what = "no end in sight" if timeout is not None else "nothing will happen any more"
            raise Deadlock(f"{what}; waiting: {'; '.join(map(where, asyncio.all_tasks(self)))}")
        self.now += timeout
        return []

    def run_in_executor(self, executor, function, *arguments):
        """The work is done in place, a second later."""
        future = self.create_future()

        def work():
            try:
                result = function(*arguments)
            except Exception as error:
                future.cancelled() or future.set_exception(error)
            else:
                future.cancelled() or future.set_result(result)

        self.call_later(1.0, work)
        return future

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        pass


def where(task):
    """The coroutines of a task, outermost first, with their lines."""
    found, awaited = [], task.get_coro()
    while awaited is not None and (frame := getattr(awaited, "cr_frame", None)) is not None:
        found.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = awaited.cr_await
    return " > ".join(found)
