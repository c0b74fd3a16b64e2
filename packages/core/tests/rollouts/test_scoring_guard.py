"""What a verifier leaves, forks and programs and text where none belongs, costs no other call and outlives nobody."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reroll.api import Verdict, Verifier
from reroll.rollouts.scoring import pool as pools
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.guard import reap
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.progress import IDLE, WORKING, ProgressPage
from reroll.rollouts.scoring.scorer import Scorer
from reroll.rollouts.scoring.worker import VerifierSpec

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

from leaving_cases import KeyConfig, Leaves, LeavesWithKey  # noqa: E402
from scoring_cases import task, trace  # noqa: E402

SPECS = {"leaves": VerifierSpec("leaving_cases:Leaves", {}, "reroll-cases")}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def judged(texts, deadline=20.0):
    async def main():
        async with ScoringPool(SPECS, 1, deadline) as pool:
            of = task(leaves="")
            calls = [pool.judge("leaves", of, [trace(text, of)]) for text in texts]
            return [item.verdicts[0] for item in await asyncio.wait_for(asyncio.gather(*calls), 60)]

    return asyncio.run(main())


def test_a_fork_that_returns_is_no_second_worker():
    found = judged(["a fork that returns", "right", "its children"])
    assert [(verdict.score, verdict.state) for verdict in found] == [(1.0, "ok")] * 3
    assert found[2].detail == "none"


def test_a_fork_that_returns_ends_no_deadline():
    found = judged(["a fork that raises, and a hang", "right"], deadline=1.0)
    assert [verdict.state for verdict in found] == ["timeout", "ok"]


def test_a_fork_writes_nothing_on_the_page():
    page, path = ProgressPage.create()
    page.enter(WORKING, 3, 1.5)
    child = os.fork()
    if child == 0:
        page.rest()
        page.enter(WORKING, 4, 2.5)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert page.read() == (WORKING, 3, 1.5)
    page.rest()
    assert page.read().phase == IDLE
    page.close()
    path.unlink()


def test_text_on_the_connection_ends_the_worker_and_no_other_call(monkeypatch):
    monkeypatch.setattr(pools, "LOST_SECONDS", 1000.0)
    warned = []

    async def main():
        async with ScoringPool(SPECS, 1, 20.0, warn=warned.append) as pool:
            of = task(leaves="")
            calls = [pool.judge("leaves", of, [trace(text, of)]) for text in ("text on every connection", "right")]
            return [item.verdicts[0] for item in await asyncio.wait_for(asyncio.gather(*calls), 60)]

    assert [verdict.state for verdict in asyncio.run(main())] == ["service_error", "ok"]
    assert "something else used the connection" in warned[0]


CONTROLLER = """
import sys, time
from reroll.rollouts.scoring.blocking import BlockingScorer
from reroll.rollouts.scoring.config import ScoringConfig
from reroll.rollouts.scoring.scorer import SelectedVerifier
from leaving_cases import Leaves
from scoring_cases import task, trace

scorer = BlockingScorer({"leaves": SelectedVerifier(Leaves(), "cases")}, ScoringConfig(workers=1, deadline_seconds=600))
of = task(leaves=sys.argv[1])
scorer.score(of, trace("right", of))
scorer.submit(of, [trace("programs", of)])
sys.stdin.readline()
"""


def left(seconds):
    """Programs that the verifier started, by how long they sleep."""
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in found
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def until(true):
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


@pytest.mark.skipif(sys.platform != "linux", reason="the platform does not show what was started")
@pytest.mark.parametrize("end", ["is killed", "closes nothing"])
def test_what_a_verifier_started_ends_with_a_controller_that(end):
    seconds = str(2_000_000 + os.getpid())
    command = [sys.executable, "-c", CONTROLLER, seconds]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as controller:
        assert until(lambda: len(left(seconds)) == 2)
        if end == "is killed":
            controller.kill()
    assert until(lambda: not left(seconds))


def test_reaping_takes_only_the_group():
    ours, theirs = (subprocess.Popen(["true"], process_group=0) for _ in range(2))
    for child in (ours, theirs):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    reap(ours.pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(ours.pid, os.WNOHANG)
    assert theirs.wait() == 0
    ours.wait()


class Asks(Verifier):
    name = "asks"
    Config = KeyConfig

    async def score(self, task, trace):
        return Verdict(1.0, detail=os.environ["JUDGE_KEY"])


def test_a_services_key_is_no_business_of_other_processes(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-of-the-judge")

    async def main(**verifiers):
        async with Scorer(verifiers, ScoringConfig(workers=1)) as scorer:
            of = task(**dict.fromkeys(verifiers, "right"))
            return await scorer.score(of, trace("environment", of))

    found = asyncio.run(main(leaves=Leaves(), asks=Asks()))
    assert (found["leaves"].detail, found["asks"].detail) == ("''", "sk-of-the-judge")
    found = asyncio.run(main(leaves=LeavesWithKey(), asks=Asks()))
    assert found["leaves"].detail == "'sk-of-the-judge'"
