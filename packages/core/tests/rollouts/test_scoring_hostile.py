"""Everything that an answer may do to its verifier, all of it at once, and nothing of it reaches another call."""

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from reroll.rollouts.scoring import pool as pools
from reroll.rollouts.scoring.leftovers import VARIABLE, end_leftovers
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

from scoring_cases import bred_seconds, task, trace  # noqa: E402

HOSTILE = {
    "sleep": {"timeout"},
    "eat": {"service_error", "timeout"},
    "hang in C": {"timeout"},
    "power": {"timeout", "service_error"},
    "exit": {"service_error"},
    "exit quietly": {"service_error"},
    "breed": {"timeout"},
    "close everything": {"service_error"},
    "recurse": {"service_error", "timeout"},
    "ignore signals": {"timeout"},
}
MEMORY_MB = 400


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def children():
    """Processes below this one; a test's own are those that were not there before it."""
    return set(psutil.Process().children(recursive=True))


class Watched:
    """Most memory of the processes that are started while the block runs together, in bytes."""

    def __init__(self):
        self.others = children()
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.wait(0.02):
            total = 0
            for child in children() - self.others:
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue
            self.most = max(self.most, total)


def test_a_lost_connection_is_not_blamed_on_whoever_is_at_work():
    async def main():
        specs = {"plain": VerifierSpec("scoring_cases:Plain", {}, "reroll-cases")}
        async with ScoringPool(specs, 1, 20.0) as pool:
            of = task(plain="right")
            await pool.judge("plain", of, [trace("right", of)])
            calls = []
            for text in ("close everything", "slow", "right"):
                calls.append(pool.judge("plain", of, [trace(text, of)]))
                await asyncio.sleep(0)  # each travels, and is answered, by itself
            judged = await asyncio.wait_for(asyncio.gather(*calls), 60)
            return [item.verdicts[0].state for item in judged]

    assert asyncio.run(main()) == ["service_error", "ok", "ok"]


def strays():
    """Programs that a hostile call starts."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if (
            process.info["cmdline"] == ["sleep", str(bred_seconds(os.getpid()))]
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            found.append(process.pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the platform neither bounds memory nor shows what was started")
def test_hostile_calls_among_ordinary_ones_cost_only_themselves():
    ordinary = [("right", "wrong")[i % 2] for i in range(200)]
    texts = list(ordinary)
    for place, text in enumerate(HOSTILE):
        texts.insert(17 * place, text)
    before, others = set(strays()), children()

    async def main():
        specs = {"plain": VerifierSpec("scoring_cases:Plain", {}, "reroll-cases")}
        async with ScoringPool(specs, 2, 1.0, memory_limit_mb=MEMORY_MB) as pool:
            of = task(plain="right")
            calls = [pool.judge("plain", of, [trace(text, of, i)]) for i, text in enumerate(texts)]
            judged = await asyncio.wait_for(asyncio.gather(*calls), 120)
            verdicts = [item.verdicts[0] for item in judged]
            pids = pool.pids
        return verdicts, pids

    with Watched() as memory:
        verdicts, pids = asyncio.run(main())
    for text, verdict in zip(texts, verdicts, strict=True):
        if text in HOSTILE:
            assert verdict.state in HOSTILE[text] and verdict.score is None, (text, verdict)
        else:
            assert (verdict.score, verdict.state) == (float(text == "right"), "ok"), verdict
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)
    assert not children() - others
    assert not set(strays()) - before
    # A worker that is being replaced may still be there beside the two, and each has its interpreter beside its data.
    assert 0 < memory.most < 4 * (MEMORY_MB + 100) * 2**20


def test_leftovers_are_found_by_their_mark_alone():
    ours, theirs = (
        psutil.Popen(["sleep", "60"], env={VARIABLE: mark}, start_new_session=True) for mark in ("ours", "ours too")
    )
    with ours, theirs:
        while not (ours.environ() and theirs.environ()):  # it shows once the program runs
            time.sleep(0.01)
        assert end_leftovers("ours") == 1
        assert ours.wait() == -9 and theirs.is_running()
        theirs.kill()
    assert end_leftovers("ours") == 0


def test_leftovers_are_looked_for_where_there_is_nothing_to_see(tmp_path):
    assert end_leftovers("ours", tmp_path / "nothing") == 0


def test_waiting_calls_are_not_written_out_before_they_are_sent(monkeypatch):
    """What waits costs little beside what its caller holds; only a window of it is sent."""
    written = Counter()
    pickled = pools.Lane.send

    def send(lane, jobs, answered):
        pickled(lane, jobs, answered)
        written["most"] = max(written["most"], sum(lane.waiting for lane in lane_pool._lanes))

    monkeypatch.setattr(pools.Lane, "send", send)

    async def main():
        nonlocal lane_pool
        specs = {"plain": VerifierSpec("scoring_cases:Plain", {}, "reroll-cases")}
        async with ScoringPool(specs, 1, 30.0) as lane_pool:
            of = task(plain="right")
            one = trace("right", of)
            calls = [lane_pool.judge("plain", of, [one]) for _ in range(5000)]
            judged = await asyncio.wait_for(asyncio.gather(*calls), 120)
            return [item.verdicts[0].score for item in judged]

    lane_pool = None
    assert asyncio.run(main()) == [1.0] * 5000
    assert 0 < written["most"] <= 64
