"""The scorer without an event loop: the same verdicts from wherever it is asked, and an end that everybody hears of."""

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest

from reroll.api import PluginError, RerollError, ScorerClosed, Verdict, Verifier, WorkerDied
from reroll.rollouts.scoring import blocking, lane
from reroll.rollouts.scoring.blocking import BlockingScorer
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import Scorer, SelectedVerifier

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

import scoring_cases as cases  # noqa: E402
from scoring_cases import task, trace  # noqa: E402

TARGETS = {"plain": "right", "grouped": None, "service": None}
TEXTS = ["right", "no", "longest of all", "raise"]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def selected(*classes):
    return {cls.name: SelectedVerifier(cls(), "reroll-cases") for cls in classes}


def make(*classes, deadline=5.0):
    classes = classes or (cases.Plain, cases.Grouped, cases.Service)
    return BlockingScorer(selected(*classes), ScoringConfig(deadline_seconds=deadline, workers=1))


def group():
    of = task(**TARGETS)
    return of, [trace(text, of, index) for index, text in enumerate(TEXTS)]


def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_verdicts_are_the_same_from_everywhere():
    of, traces = group()

    async def expected():
        async with Scorer(selected(cases.Plain, cases.Grouped, cases.Service), ScoringConfig(workers=1)) as scorer:
            return await scorer.score_group(of, traces)

    async def from_another_loop(scorer):
        by_thread = await asyncio.to_thread(scorer.score_group, of, traces)
        by_future = await asyncio.wrap_future(scorer.submit(of, traces))
        return [by_thread, by_future]

    plain = asyncio.run(expected())
    assert [verdicts["plain"].score for verdicts in plain] == [1.0, 0.0, 0.0, None]
    assert [verdicts["grouped"].score for verdicts in plain] == [0.0, 0.0, 1.0, 0.0]
    assert [verdicts["service"].state for verdicts in plain] == ["completed"] * 3 + ["service_error"]
    with make() as scorer, ThreadPoolExecutor(8) as threads:
        found = [scorer.score_group(of, traces), in_a_thread(lambda: scorer.score_group(of, traces))]
        found += [call.result() for call in [threads.submit(scorer.score_group, of, traces) for _ in range(16)]]
        found += asyncio.run(from_another_loop(scorer))
        alone = [scorer.score(of, item)["plain"] for item in traces]
        judged = scorer.judge("plain", of, traces)
    assert found == [plain] * 20
    assert alone == [verdicts["plain"] for verdicts in plain] == [item.verdict for item in judged]


def test_what_breaks_a_contract_is_raised_where_it_was_asked():
    of = task(plain="right")
    with make(cases.Plain) as scorer:
        with pytest.raises(PluginError, match="broke its contract"):
            scorer.score(of, trace("return nan", of))
        with pytest.raises(PluginError, match="'other'"):
            scorer.judge("other", of, [trace("right", of)])
        assert scorer.score(of, trace("right", of))["plain"].score == 1.0
    with pytest.raises(PluginError, match="implements both"):
        make(cases.Both)
    assert not [thread for thread in threading.enumerate() if thread.name == "scoring"]


def children():
    return {process.pid for process in psutil.Process().children()}


def test_closing_ends_every_waiting_call_and_process():
    others = children()
    of = task(plain="right", service=0)
    scorer = make(cases.Plain, cases.Service, deadline=60.0)
    scorer.score(of, trace("right", of))
    workers = children() - others
    assert workers
    with ThreadPoolExecutor(6) as threads:
        hanging = [threads.submit(scorer.score, of, trace("hang", of)) for _ in range(6)]
        later = scorer.submit(of, [trace("hang", of)])
        wait(hanging, timeout=0.1)
        scorer.close()
        for call in (*hanging, later):
            with pytest.raises(ScorerClosed, match="the scorer .*closed"):
                call.result(timeout=10)
    scorer.close()
    for call in (lambda: scorer.score(of, trace("right", of)), lambda: scorer.submit(of, [trace("right", of)])):
        with pytest.raises(ScorerClosed, match="the scorer is closed; make another one"):
            call()
    assert not workers & children()


def test_threads_that_wait_for_ever_do_not_hold_up_the_end(monkeypatch):
    others = children()
    monkeypatch.setattr(blocking, "CLOSING_SECONDS", 0.1)
    answered = threading.Event()

    class Silent(Verifier):
        name = "silent"
        concurrency = 64

        async def score(self, task, trace):
            await asyncio.to_thread(answered.wait)
            return Verdict(1.0)

    scorer = make(cases.Plain, Silent, deadline=60.0)
    of, hanging = task(plain="right"), task(silent=0)
    scorer.score(of, trace("right", of))
    workers = children() - others
    closing = ThreadPoolExecutor(1)
    try:
        # More than the event loop has threads for, so that none is left for what closing does.
        waiting = scorer.submit(hanging, [trace("x", hanging, index) for index in range(60)])
        wait([waiting], timeout=0.1)
        closing.submit(scorer.close).result(timeout=30)
        assert not answered.is_set()
        assert not workers & children()
        with pytest.raises(ScorerClosed):
            waiting.result(timeout=10)
    finally:
        answered.set()
        closing.shutdown()


def test_many_threads_may_close_at_once_while_others_ask():
    of = task(plain="right")
    scorer = make(cases.Plain)

    def ask():
        try:
            return scorer.score(of, trace("right", of))["plain"].score
        except ScorerClosed:
            return None

    with ThreadPoolExecutor(12) as threads:
        asking = [threads.submit(ask) for _ in range(40)]
        closing = [threads.submit(scorer.close) for _ in range(4)]
        assert {call.result(timeout=60) for call in asking} <= {1.0, None}
        assert [call.result(timeout=60) for call in closing] == [None] * 4


def test_a_failure_of_the_pool_reaches_every_caller(monkeypatch):
    async def fail(*arguments):
        raise OSError("no more processes")

    monkeypatch.setattr(lane.Lane, "start", fail)
    of = task(plain="right")
    with make(cases.Plain) as scorer, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(scorer.score, of, trace("right", of)) for _ in range(8)]
        for call in calls:
            with pytest.raises(WorkerDied, match="no more processes"):
                call.result(timeout=60)
        with pytest.raises(RerollError, match="no more processes"):
            scorer.score(of, trace("right", of))


def test_a_call_that_is_given_up_ends_alone():
    of = task(service=0)
    with make(cases.Service) as scorer:

        async def give_up():
            waiting = asyncio.wrap_future(scorer.submit(of, [trace("hang", of)]))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            assert not done

        asyncio.run(give_up())
        assert scorer.score(of, trace("fine", of))["service"].score == 1.0


def test_a_blocking_call_on_the_scorers_own_loop_is_refused():
    of = task(nested=0)

    class Nested(Verifier):
        name = "nested"

        async def score(self, task, trace):
            scorer.score(task, trace)
            return Verdict(1.0)

    with make(Nested) as scorer:
        verdict = scorer.score(of, trace("right", of))["nested"]
    assert verdict.state == "service_error" and "would never end; use submit" in verdict.detail
