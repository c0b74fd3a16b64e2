"""Workers: called, failing, dying, closing."""

import asyncio
import os
import signal
import socket
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from threading import Timer

import psutil
import pytest

from reroll.api import WorkerDied, WorkerSpec
from reroll.workers import calling
from reroll.workers.frames import read_frame_blocking
from reroll.workers.process import ProcessWorker

HERE = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


class Unreadable:
    """Can be sent, cannot be made again."""

    def __reduce__(self):
        return (int, ("not a number",))


class TwoArguments(Exception):
    """Pickles, and then cannot be made again: its constructor wants what `args` no longer holds."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Echo:
    def __init__(self, factor=1):
        if factor == 0:
            raise ValueError("factor must not be 0")
        self.factor = factor
        self.seen = []

    def times(self, value):
        self.seen.append(value)
        return value * self.factor

    def order(self):
        return self.seen

    def later(self, seconds):
        future = Future()
        Timer(seconds, future.set_result, ["late"]).start()
        return future

    def fail(self):
        raise KeyError("lost")

    def unpicklable(self):
        return lambda: 1

    def sleep(self, seconds):
        time.sleep(seconds)
        return "rested"

    def fail_oddly(self):
        raise TwoArguments("first", "second")

    def unreadable(self):
        return Unreadable()

    def die(self):
        print("these are my last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self):
        time.sleep(1000)

    def pid(self):
        return os.getpid()


def spec(**arguments):
    return WorkerSpec("echo", f"{Path(__file__).stem}:Echo", arguments, HERE)


def with_worker(body, **arguments):
    async def run():
        worker = await ProcessWorker.start(spec(**arguments))
        try:
            return await body(worker)
        finally:
            await worker.close(timeout=1)
            assert worker.process.poll() is not None

    return asyncio.run(run())


def test_calls_are_answered_in_order():
    async def body(worker):
        results = await asyncio.gather(*(worker.call("times", value) for value in range(500)))
        return results, await worker.call("order")

    results, order = with_worker(body, factor=3)
    assert results == [3 * value for value in range(500)]
    assert order == list(range(500))


def test_a_future_does_not_block_other_calls():
    async def body(worker):
        late = asyncio.ensure_future(worker.call("later", 0.3))
        quick = await worker.call("times", 2)
        assert not late.done()
        return quick, await late

    assert with_worker(body) == (2, "late")


def test_an_exception_arrives_as_it_was_raised_with_its_place():
    async def body(worker):
        with pytest.raises(KeyError, match="lost") as caught:
            await worker.call("fail")
        with pytest.raises(RuntimeError, match="cannot be sent"):
            await worker.call("unpicklable")
        assert await worker.call("times", 1) == 1
        return caught.value

    assert "in fail" in "".join(with_worker(body).__notes__)


def test_an_argument_that_cannot_be_sent_fails_its_call_only():
    async def body(worker):
        with pytest.raises(Exception, match="pickle"):
            await worker.call("times", lambda: 1)
        return await worker.call("times", 4)

    assert with_worker(body) == 4


def test_a_death_fails_every_waiting_call_with_the_last_words():
    deaths = []

    async def body(worker):
        worker.on_death = deaths.append
        results = await asyncio.gather(worker.call("later", 60), worker.call("die"), return_exceptions=True)
        with pytest.raises(WorkerDied):
            await worker.call("times", 1)
        return results

    for error in with_worker(body):
        assert isinstance(error, WorkerDied)
        assert "'echo' was killed by SIGKILL" in str(error)
        assert "these are my last words" in str(error)
    assert len(deaths) == 1


def test_a_failed_start_raises_what_was_raised():
    with pytest.raises(ValueError, match="factor must not be 0"):
        with_worker(None, factor=0)


def test_close_kills_a_worker_that_hangs():
    async def run():
        worker = await ProcessWorker.start(spec())
        hanging = asyncio.ensure_future(worker.call("hang"))
        await asyncio.sleep(0.1)
        await worker.close(timeout=0.5)
        with pytest.raises(WorkerDied):
            await hanging
        return worker.process.poll()

    assert asyncio.run(run()) is not None


def test_a_worker_ends_when_its_controller_is_killed(tmp_path):
    script = tmp_path / "controller.py"
    script.write_text(
        "import asyncio, sys\n"
        "from reroll.api import WorkerSpec\n"
        "from reroll.workers.process import ProcessWorker\n"
        "async def main():\n"
        f"    worker = await ProcessWorker.start(WorkerSpec('echo', '{Path(__file__).stem}:Echo'))\n"
        "    print(await worker.call('pid'), flush=True)\n"
        "    await worker.call('hang')\n"
        "asyncio.run(main())\n"
    )

    async def run():
        controller = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={**os.environ, **HERE}
        )
        pid = int(await controller.stdout.readline())
        controller.kill()
        await controller.wait()
        for _ in range(100):
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            await asyncio.sleep(0.1)
        return False

    assert asyncio.run(run())


def test_a_reply_that_cannot_be_read_is_a_death_not_a_hang():
    async def body(worker):
        with pytest.raises(WorkerDied, match="reply could not be read"):
            await asyncio.wait_for(worker.call("unreadable"), 20)

    with_worker(body)


def test_what_is_no_frame_is_not_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"some words that somebody printed")
        with pytest.raises(ValueError, match="something else used the connection"):
            read_frame_blocking(theirs)

    async def body(worker):
        connection = worker._writer.get_extra_info("socket")
        os.write(connection.fileno(), b"some words that somebody printed")
        with pytest.raises(WorkerDied, match=r"exit code 1(.|\n)*something else used the connection"):
            await asyncio.wait_for(worker.call("times", 5), 30)

    with_worker(body)


def test_a_stopped_worker_is_noticed(monkeypatch):
    """One that neither answers nor dies."""
    monkeypatch.setattr(calling, "PING_SECONDS", 0.25)
    monkeypatch.setattr(calling, "STARTING_PINGS", 1000)

    async def body(worker):
        await asyncio.sleep(1.0)
        assert await worker.call("times", 1) == 1, "one that is alive is left alone"
        os.kill(worker.process.pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="had not answered"):
            await asyncio.wait_for(worker.call("times", 1), 20)

    with_worker(body)


def test_a_busy_worker_is_left_alone(monkeypatch):
    monkeypatch.setattr(calling, "PING_SECONDS", 0.25)
    monkeypatch.setattr(calling, "STARTING_PINGS", 1000)

    async def body(worker):
        return await worker.call("sleep", 4)

    assert with_worker(body) == "rested"


def test_an_error_that_cannot_be_made_again_arrives_as_text():
    async def body(worker):
        with pytest.raises(RuntimeError, match="TwoArguments: first and second"):
            await worker.call("fail_oddly")
        return await worker.call("times", 5)

    assert with_worker(body) == 5
