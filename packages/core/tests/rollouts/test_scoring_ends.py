"""Whoever wants to end the program, a verifier or the user: scoring ends as a whole or not at all, and nobody waits."""

import asyncio
import gc
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from reroll.api import PluginError, RerollError, ScorerClosed, Verdict, Verifier
from reroll.rollouts.scoring import blocking
from reroll.rollouts.scoring.blocking import BlockingScorer
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

import scoring_cases as cases  # noqa: E402
from scoring_cases import task, trace  # noqa: E402

HELD = threading.Event()


class Strange(BaseException):
    pass


class Ends(Verifier):
    """Tries to end the program, in the ways that an asynchronous verifier has."""

    name = "ends"

    async def score(self, task, trace):
        match trace.completion:
            case "exit":
                sys.exit("no more")
            case "interrupt":
                raise KeyboardInterrupt
            case "strange":
                raise Strange("of its own")
            case "exit later":
                asyncio.get_running_loop().call_soon(sys.exit, "no more")
                await asyncio.sleep(0.05)
            case "exit in a task":
                later = asyncio.create_task(self.score(task, cases.trace("exit", task)))
                await asyncio.sleep(0.05)
                assert later.done()
            case "break the loop":
                asyncio.get_running_loop()._run_once = None
            case "hold a thread":
                await asyncio.to_thread(HELD.wait, 60)
            case "wait":
                await asyncio.sleep(600)
        return Verdict(1.0)

    async def close(self):
        sys.exit("closed")


class EndsAtStart(Verifier):
    name = "ends"

    def warm_up(self):
        sys.exit("no such device")

    async def score(self, task, trace):
        return Verdict(1.0)


OF = task(ends=0, plain="right")
ENDS = {"exit": "SystemExit: no more", "interrupt": "KeyboardInterrupt", "strange": "Strange: of its own"}


# What a loop was at when it failed complains when it is collected: here, and not in another test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    yield
    gc.collect()


def make(**options):
    verifiers = {"ends": SelectedVerifier(Ends(), "reroll-cases"), "plain": cases.Plain()}
    return BlockingScorer(verifiers, ScoringConfig(workers=1, deadline_seconds=60.0), **options)


def children():
    """Processes that this one started; a test's own are those that were not there before it."""
    return set(psutil.Process().children())


def asked(scorer, text, name="ends"):
    return scorer.submit(task(**{name: "right"}), [trace(text, OF)])


def test_a_verifier_that_ends_the_program_ends_its_call():
    async def main():
        async with Scorer({"ends": Ends()}) as scorer:
            return [(await scorer.judge("ends", OF, [trace(text, OF)]))[0].verdict for text in (*ENDS, "right")]

    warned = []
    with make(warn=warned.append) as scorer:
        found = [asked(scorer, text).result(timeout=30)[0]["ends"] for text in (*ENDS, "right")]
    assert [verdict.state for verdict in found] == ["service_error"] * 3 + ["ok"]
    assert [verdict.detail for verdict in found[:3]] == list(ENDS.values())
    assert asyncio.run(main()) == found
    assert warned == ["verifier 'ends' of reroll-cases could not be closed: SystemExit: closed"]


@pytest.mark.parametrize("text", ["exit later", "exit in a task"])
def test_what_a_verifier_leaves_on_the_loop_does_not_end_it(text):
    with make() as scorer:
        waiting = asked(scorer, "wait")
        assert asked(scorer, text).result(timeout=30)[0]["ends"].score == 1.0
        assert asked(scorer, "right").result(timeout=30)[0]["ends"].score == 1.0
        assert not waiting.done()
    with pytest.raises(ScorerClosed):
        waiting.result(timeout=30)


def test_a_verifier_that_ends_the_program_at_its_start_is_named():
    words = r"verifier 'ends' of reroll-cases cannot be prepared: its `warm_up` raised SystemExit: no such device"
    with pytest.raises(PluginError, match=words):
        BlockingScorer({"ends": SelectedVerifier(EndsAtStart(), "reroll-cases")})
    with pytest.raises(PluginError, match=words):
        Scorer({"ends": SelectedVerifier(EndsAtStart(), "reroll-cases")})
    assert not [thread for thread in threading.enumerate() if thread.name == "scoring"]


def test_nobody_waits_for_a_loop_that_has_failed():
    before = children()
    scorer = make()
    assert asked(scorer, "right", "plain").result(timeout=30)[0]["plain"].score == 1.0
    workers = children() - before
    waiting = [asked(scorer, "wait"), asked(scorer, "hang", "plain"), asked(scorer, "break the loop")]
    for call in (*waiting, waiting[0]):
        with pytest.raises(RerollError, match="the scorer's event loop failed: .*; make another scorer"):
            call.result(timeout=30)
    with pytest.raises(RerollError, match="the scorer's event loop failed"):
        scorer.score(OF, trace("right", OF))
    assert workers and not psutil.wait_procs(workers, timeout=30)[1]
    scorer.close()
    with pytest.raises(ScorerClosed):
        scorer.score(OF, trace("right", OF))


@pytest.fixture
def heard():
    """A shell's background jobs ignore Ctrl-C, and so do tests in one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(monkeypatch, times):
    """Ctrl-C while `close` waits for the end."""
    waited = blocking.wait
    left = [None] * times

    def wait(futures):
        if left:
            left.pop()
            signal.raise_signal(signal.SIGINT)
        return waited(futures)

    monkeypatch.setattr(blocking, "wait", wait)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("times", [1, blocking.INTERRUPTS - 1, blocking.INTERRUPTS])
def test_an_interrupted_close_abandons_nothing(monkeypatch, times):
    before = children()
    scorer = make()
    assert asked(scorer, "right", "plain").result(timeout=30)[0]["plain"].score == 1.0
    workers = children() - before
    waiting = [asked(scorer, "wait"), asked(scorer, "hang", "plain")]
    interrupting(monkeypatch, times)
    with pytest.raises(KeyboardInterrupt):
        scorer.close()
    if times < blocking.INTERRUPTS:
        assert all(call.done() for call in waiting)
        assert not scorer._thread.is_alive()
    scorer.close()
    for call in waiting:
        with pytest.raises((ScorerClosed, CancelledError)):
            call.result(timeout=0)
    assert workers and not any(worker.is_running() for worker in workers)
    assert not scorer._thread.is_alive()


def test_a_scorer_whose_close_is_cancelled_is_closed_first():
    async def main():
        scorer = Scorer({"plain": cases.Plain(), "ends": Ends()}, ScoringConfig(workers=1, deadline_seconds=60.0))
        await scorer.score(task(plain="right"), trace("right", OF))
        pids = scorer.pool.pids
        waiting = asyncio.ensure_future(scorer.score(task(plain="right"), trace("hang", OF)))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(scorer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert pids and not any(psutil.pid_exists(pid) for pid in pids)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await scorer.close()

    asyncio.run(main())


def test_calls_that_hold_every_thread_hold_up_no_end():
    """Nor the replacement of a worker."""
    HELD.clear()

    async def main():
        verifiers = {"plain": cases.Plain(), "ends": Ends()}
        scorer = Scorer(verifiers, ScoringConfig(workers=1, deadline_seconds=0.5))
        many = 2 * (os.cpu_count() or 1) + 40
        held = await scorer.score_group(task(ends=0), [trace("hold a thread", OF)] * many)
        assert {verdicts["ends"].state for verdicts in held} == {"timeout"}
        found = await scorer.score_group(task(plain="right"), [trace(text, OF) for text in ("hang", "right")])
        assert [verdicts["plain"].state for verdicts in found] == ["timeout", "ok"]
        await asyncio.wait_for(scorer.close(), 30)
        assert not HELD.is_set()
        HELD.set()

    try:
        asyncio.run(main())
    finally:
        HELD.set()
