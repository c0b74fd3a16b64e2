"""The pool of processes: nothing that a verifier does reaches beyond its own call."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from reroll.api import PluginError, ScorerClosed
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.progress import IDLE, LOADING, WORKING, ProgressPage
from reroll.rollouts.scoring.worker import VerifierSpec

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)

from scoring_cases import task, trace  # noqa: E402

CLASSES = {
    "plain": "Plain",
    "grouped": "Grouped",
    "slow_import": "SlowImport",
    "dies_in_import": "DiesInImport",
    "raises_in_import": "RaisesInImport",
    "forgotten": "Forgotten",
}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


def make(deadline=1.0, workers=2, **options):
    config = options.pop("config", {})
    return ScoringPool(
        {name: VerifierSpec(f"scoring_cases:{cls}", config, "reroll-cases") for name, cls in CLASSES.items()},
        workers,
        deadline,
        **options,
    )


async def ask(pool, texts, name="plain"):
    of = task(**{name: "right"})
    judged = await asyncio.gather(*(pool.judge(name, of, [trace(text, of, i)]) for i, text in enumerate(texts)))
    return [item.verdicts[0] for item in judged]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def judged(texts, name="plain", **options):
    """Verdicts of a pool of its own, which leaves no process."""

    async def main():
        async with make(**options) as pool:
            verdicts = await asyncio.wait_for(ask(pool, texts, name), 60)
            pids = pool.pids
        assert not any(alive(pid) for pid in pids)
        return verdicts

    return asyncio.run(main())


def test_queue_time_does_not_count():
    verdicts = judged(["right", "wrong"] * 200)
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0] * 200
    assert {verdict.state for verdict in verdicts} == {"ok"}


def test_queue_time_longer_than_the_deadline_does_not_count():
    assert [verdict.state for verdict in judged(["slow"] * 3, deadline=1.0, workers=1)] == ["ok"] * 3


def test_hanging_calls_cost_only_themselves():
    texts = ["hang" if i % 25 == 0 else ("right", "wrong")[i % 2] for i in range(200)]
    verdicts = judged(texts)
    for text, verdict in zip(texts, verdicts, strict=True):
        if text == "hang":
            assert (verdict.score, verdict.state) == (None, "timeout") and "1 s" in verdict.detail
        else:
            assert (verdict.score, verdict.state) == (float(text == "right"), "ok")


def test_a_hang_that_keeps_the_interpreter_lock_is_blamed_alone():
    verdicts = judged(["right"] * 5 + ["hang in C"] + ["right"] * 20, workers=1)
    assert Counter(verdict.state for verdict in verdicts) == {"ok": 25, "timeout": 1}
    assert verdicts[5].state == "timeout"


def test_calls_behind_a_slow_one_are_judged_by_another_worker():
    async def main():
        async with make(deadline=30.0) as pool:
            await ask(pool, ["right"] * 20)
            hanging = asyncio.ensure_future(ask(pool, ["hang"]))
            await asyncio.sleep(0)
            assert [verdict.score for verdict in await asyncio.wait_for(ask(pool, ["right"] * 100), 15)] == [1.0] * 100
            assert not hanging.done()
            hanging.cancel()

    asyncio.run(main())


FAILURES = {
    "exit": "exit code 3",
    "segfault": "SIGSEGV",
    "speak and die": "last words of a verifier",
    "sys.exit": "SystemExit: no more",
    "raise": "ValueError: cannot judge this",
    **({"memory": "MemoryError"} if sys.platform == "linux" else {}),
}


def test_a_call_that_fails_is_a_service_error():
    texts = [text for failure in FAILURES for text in ["right"] * 5 + [failure]]
    for text, verdict in zip(texts, judged(texts, deadline=20.0), strict=True):
        if text == "right":
            assert verdict.score == 1.0
        else:
            assert (verdict.score, verdict.state) == (None, "service_error")
            assert FAILURES[text] in verdict.detail and "\n" not in verdict.detail


def test_each_tenth_trace_raises():
    verdicts = judged(["raise" if i % 10 == 0 else "right" for i in range(100)], workers=1)
    assert Counter(verdict.state for verdict in verdicts) == {"ok": 90, "service_error": 10}


@pytest.mark.skipif(sys.platform != "linux", reason="the platform does not bound memory")
def test_a_worker_that_fills_up_is_replaced_before_its_calls_fail():
    verdicts = judged(["leak"] * 12, workers=1, memory_limit_mb=500, deadline=20.0)
    assert {verdict.state for verdict in verdicts} == {"ok"}
    assert max(verdict.score for verdict in verdicts) < 10


def test_an_import_does_not_count():
    assert judged(["right"], "slow_import", deadline=0.5, workers=1)[0].state == "ok"


def test_an_import_that_raises_names_verifier_and_distribution():
    with pytest.raises(PluginError, match=r"'raises_in_import' of reroll-cases .*abacus.*update reroll-cases"):
        judged(["right"], "raises_in_import", workers=1)


def test_an_import_that_kills_its_process_ends_after_some_attempts(tmp_path):
    async def main():
        async with ScoringPool(
            {"dies_in_import": VerifierSpec("scoring_cases:DiesInImport", {"folder": str(tmp_path)}, "reroll-cases")}, 1
        ) as pool:
            with pytest.raises(PluginError, match=r"'dies_in_import' of reroll-cases .*exit code 5"):
                await asyncio.wait_for(ask(pool, ["right"], "dies_in_import"), 60)
            started = len(list(tmp_path.iterdir()))
            with pytest.raises(PluginError, match="dies_in_import"):
                await ask(pool, ["right"], "dies_in_import")
            assert started == len(list(tmp_path.iterdir())) == 3

    asyncio.run(main())


def test_an_import_that_hangs_is_ended():
    with pytest.raises(PluginError, match=r"'slow_import' of reroll-cases .*longer than 0.3 s"):
        judged(["right"] * 3, "slow_import", load_seconds=0.3, workers=1)


VIOLATIONS = {
    "return text": "'1.0' (str)",
    "return None": "None (NoneType)",
    "return nan": "nan (float)",
    "return inf": "inf (float)",
    "return bool": "True (bool)",
    "return state": "'great' (str)",
    "return components": "'yes' (str)",
}


def test_what_is_no_verdict_is_an_error():
    async def main():
        async with make(workers=1) as pool:
            for text, says in VIOLATIONS.items():
                with pytest.raises(PluginError, match="'plain' of reroll-cases broke its contract") as raised:
                    await ask(pool, [text])
                assert says in str(raised.value)
                assert any(remedy in str(raised.value) for remedy in ("must be", "must return", "states are"))
            (verdict,) = await ask(pool, ["return int"])
            assert verdict.score == 1.0 and isinstance(verdict.score, float)

    asyncio.run(main())


def test_an_awaitable_from_a_plain_score_is_an_error():
    with pytest.raises(PluginError, match="async def score"):
        judged(["right"], "forgotten", workers=1)


def test_groups_are_asked_once():
    async def main():
        async with make(workers=1) as pool:
            of = task(grouped=None)
            traces = [trace(text, of) for text in ("a", "bbb", "cc")]
            judged = await pool.judge("grouped", of, traces, group=True)
            assert [verdict.score for verdict in judged.verdicts] == [0.0, 1.0, 0.0]
            hanging = await pool.judge("grouped", of, [trace("hang", of), *traces], group=True)
            assert [verdict.state for verdict in hanging.verdicts] == ["timeout"] * 4
            with pytest.raises(PluginError, match="2 verdicts for 3 traces"):
                await pool.judge("grouped", of, [trace("one short", of), *traces[1:]], group=True)

    asyncio.run(main())


def test_a_worker_that_is_killed_from_outside_is_replaced():
    async def main():
        async with make() as pool:
            await ask(pool, ["right"] * 4)
            before = pool.pids
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            verdicts = await asyncio.wait_for(ask(pool, ["right"] * 20), 30)
            # Nobody was at work when they were killed, so no call is to blame.
            assert [verdict.score for verdict in verdicts] == [1.0] * 20
            assert not set(before) & set(pool.pids)

    asyncio.run(main())


def test_what_a_verifier_started_ends_with_its_worker():
    async def main():
        async with make(workers=1) as pool:
            (verdict,) = await ask(pool, ["child"])
            assert verdict.state == "timeout"

    before = set(_processes("time.sleep(600)"))
    asyncio.run(main())
    deadline = time.monotonic() + 10
    while set(_processes("time.sleep(600)")) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(_processes("time.sleep(600)")) - before


def _processes(words: str) -> list[str]:
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("no /proc")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_cancelled_caller_leaves_the_pool_in_order():
    async def main():
        async with make(workers=1) as pool:
            await ask(pool, ["right"])
            waiting = asyncio.ensure_future(ask(pool, ["hang", "right", "hang"]))
            await asyncio.sleep(0.1)
            waiting.cancel()
            assert [verdict.score for verdict in await asyncio.wait_for(ask(pool, ["right"] * 9), 30)] == [1.0] * 9

    asyncio.run(main())


def test_closing_with_calls_under_way_leaves_no_process():
    async def main():
        pool = make(deadline=60.0)
        await ask(pool, ["right"] * 4)
        waiting = asyncio.ensure_future(ask(pool, ["hang"] * 8))
        await asyncio.sleep(0.1)
        pids = pool.pids
        await pool.close()
        assert pids and not any(alive(pid) for pid in pids)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ScorerClosed, match="closed"):
            await ask(pool, ["right"])

    asyncio.run(main())


CONTROLLER = """
import asyncio
from reroll.rollouts.scoring.pool import ScoringPool
from reroll.rollouts.scoring.worker import VerifierSpec
from scoring_cases import task, trace

async def main():
    pool = ScoringPool({"plain": VerifierSpec("scoring_cases:Plain", {}, "reroll-cases")}, 1, 600.0)
    of = task(plain="right")
    await pool.judge("plain", of, [trace("right", of)])
    hanging = asyncio.ensure_future(pool.judge("plain", of, [trace("hang in C", of)]))
    await asyncio.sleep(0.3)
    print(*pool.pids, flush=True)
    await hanging

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can have a process killed with its parent")
def test_a_worker_ends_with_a_controller_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True) as controller:
        pid = int(controller.stdout.readline())
        controller.kill()
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether the process exists and is no zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_sent_fails_alone():
    async def main():
        async with make(workers=1) as pool:
            of = task(plain="right")
            odd = trace("right", of)
            odd.info["open"] = (line for line in ())
            results = await asyncio.gather(
                pool.judge("plain", of, [odd]), pool.judge("plain", of, [trace("right", of)]), return_exceptions=True
            )
            (verdict,) = results[0].verdicts
            assert verdict.state == "service_error"
            assert "cannot pickle" in verdict.detail
            assert results[1].verdicts[0].score == 1.0

    asyncio.run(main())


def test_a_pool_without_calls_starts_nothing():
    async def main():
        async with make() as pool:
            assert pool.pids == []
            with pytest.raises(PluginError, match="'other'"):
                await ask(pool, ["right"], "other")

    asyncio.run(main())


def test_progress_page_is_shared():
    ours, path = ProgressPage.create()
    theirs = ProgressPage(path)
    path.unlink()
    assert ours.read().phase == IDLE
    theirs.enter(LOADING, 3, 1.5)
    assert ours.read() == (LOADING, 3, 1.5)
    theirs.enter(WORKING, 4, 2.5)
    assert ours.read() == (WORKING, 4, 2.5)
    theirs.rest()
    assert ours.read().phase == IDLE
    ours.revoke(9)
    assert theirs.revoked == 9


def test_a_verifier_that_changes_its_task_changes_no_other_calls():
    # Fast calls first, after which many travel together.
    verdicts = judged(["right"] * 100 + ["count"] * 40)
    assert [verdict.score for verdict in verdicts[100:]] == [1.0] * 40


def test_what_a_verifier_prints_is_in_the_log_when_its_process_is_killed(tmp_path):
    async def main():
        async with make(0.5, 1, logs=tmp_path) as pool:
            return await ask(pool, ["print and hang"])

    assert [verdict.state for verdict in asyncio.run(main())] == ["timeout"]
    assert any("what it printed" in log.read_text() for log in tmp_path.iterdir())


def test_a_verifier_that_closes_its_log_costs_itself_alone():
    verdicts = judged(["right"] * 100 + ["close and raise"] + ["right", "raise"] * 20, workers=1)
    assert [verdict.score for verdict in verdicts[100:]] == [None] + [1.0, None] * 20
