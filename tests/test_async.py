"""Asynchronous runs on real engines: bounds, weights, evaluation, third-party modes, lives of processes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from statistics import median

import psutil
import pytest
from driving import RUN, run_and_watch, session_of
from killing import start as begin_run
from test_train_command import command, gone, start, wait_for, worker

from reroll.api import PublicationMode, PublicationReport, RerollError, hookimpl
from reroll.loop import train
from reroll.traces.saved import read_rollouts

ASYNC = ("async.fully_async=true", "async.max_weight_staleness=1", "rollout.group_filters=[]")
"""Without filters, so that every collection is a step."""
EVAL = """
[eval]
eval_interval = 2
skip_eval_before_train = true
[[eval.sets]]
name = "held-out"
task_set = { name = "addition", verifier = "regex", split = "held_out", high = 40, size = 24 }
"""


def saved(output):
    """Every saved training trace, by the collection that it was taken by."""
    folders = sorted((output / "rollouts").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    return [list(read_rollouts(folder)) for folder in folders]


def versions(record):
    return {version for node in record["nodes"] for version, _, _ in node["weight_versions"]}


def check_bounds(output, seen, bound, homogeneous, siblings=4):
    """Staleness of what was trained on, whole groups, and the versions of engines, from what the run left behind."""
    for step, records in enumerate(saved(output)):
        groups = {}
        for record in records:
            stamp = record["info"]["reroll"]
            if stamp["disposition"] == "consumed":
                groups.setdefault(stamp["group_index"], []).append(record)
        for group in groups.values():
            met = set().union(*(versions(record) for record in group))
            assert step - min(met) <= bound
            assert max(met) <= step
            assert not homogeneous or len(met) == 1
            assert sorted(record["info"]["reroll"]["sibling"] for record in group) == [*range(siblings)]
    ledger = seen.summary.ledger
    assert ledger["dispatched"] == sum(count for name, count in ledger.items() if name != "dispatched")
    assert (ledger["in_flight"], ledger["queued"]) == (0, 0)
    assert sorted(seen.versions) == seen.versions


@pytest.mark.parametrize(
    ("mode", "engines", "homogeneous"),
    [
        ("refresh", 2, False),
        ("engine_drain", 2, True),
        pytest.param("barrier", 1, True, marks=pytest.mark.slow),
        pytest.param("engine_drain", 1, True, marks=pytest.mark.slow),
        pytest.param("refresh", 1, False, marks=pytest.mark.slow),
    ],
)
def test_an_asynchronous_run_keeps_its_bound_and_its_engines_the_trainers_weights(
    run_file, tmp_path, mode, engines, homogeneous
):
    settings = [*ASYNC, f'serving.publication_mode="{mode}"', f"serving.num_engines={engines}"]
    seen = run_and_watch(run_file(RUN + EVAL), tmp_path / "out", "rollout.num_rollout=6", *settings)
    check_bounds(tmp_path / "out", seen, bound=1, homogeneous=homogeneous)
    steps = seen.summary.steps
    assert seen.engine_weights == [digest for digest in seen.weights[:steps] for _ in range(engines)]
    answers = list((tmp_path / "out" / "eval" / "held-out").glob("step_*"))
    assert {folder.name for folder in answers} >= {"step_2", "step_4"}
    for folder in answers:
        lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
        assert {version for line in lines for version in versions(line)} == {int(folder.name.removeprefix("step_"))}
    metrics = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in metrics if "train/loss" in line][-1]
    assert {"staleness/mean", "staleness/max", "groups/queued", "groups/expired", "groups/returned"} <= set(last)
    assert {"wait/trainer_seconds", "wait/producer_seconds", "publication/recompute_seconds"} <= set(last)
    assert last["staleness/max"] <= 1


class Abrupt(PublicationMode):
    """A stranger's mode: whatever is in flight ends at once and is generated again."""

    name = "abrupt"

    async def publish(self, context):
        report = PublicationReport(version=context.version, mode=self.name)
        report.num_bytes = await context.transport.begin(context.source, context.version)
        for engine in context.engines:
            await context.transport.stage(engine)
        for engine in context.engines:
            await engine.abort()
            await context.transport.commit(engine, context.version)
        return report


@hookimpl
def reroll_publication_modes():
    return [Abrupt]


def test_a_strangers_mode_runs_without_a_change_in_core(run_file, tmp_path):
    plugin = types.ModuleType("stranger")
    plugin.reroll_publication_modes = reroll_publication_modes
    settings = [*ASYNC, "async.max_weight_staleness=3", 'serving.publication_mode="abrupt"']
    # One response at a time, so that some are in flight at a publication.
    slow = ["rollout.num_rollout=8", "serving.engine={name='local', max_running_requests=1}"]
    seen = run_and_watch(run_file(), tmp_path / "out", *settings, *slow, plugin=plugin)
    check_bounds(tmp_path / "out", seen, bound=3, homogeneous=True)
    assert seen.summary.ledger["returned"] > 0, "the case must occur, or this test shows nothing"
    attempts = {}
    for record in (record for records in saved(tmp_path / "out") for record in records):
        stamp = record["info"]["reroll"]
        key = (record["task"]["source_row"], stamp["group_attempt"], stamp["sibling"])
        assert key not in attempts, "recorded twice"
        attempts[key] = True
    assert any(attempt > 0 for _, attempt, _ in attempts)


def test_sibling_timing_has_every_scored_group(run_file, tmp_path):
    run_and_watch(run_file(), tmp_path / "out", *ASYNC, "rollout.observe_sibling_timing=true")
    (path,) = (tmp_path / "out").glob("sibling_timing_*.jsonl")
    context = json.loads((tmp_path / "out" / "context.json").read_text())
    assert path.name == f"sibling_timing_{context['attempt']}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scored = {(r["info"]["reroll"]["group_index"]) for records in saved(tmp_path / "out") for r in records}
    assert {row["group_index"] for row in rows} >= scored
    for row in rows:
        assert row["group_attempt"] == 0
        assert len(row["siblings"]) == 4
        for sibling in row["siblings"]:
            assert sibling["start"] <= sibling["first_token"] <= sibling["end"]


def test_a_killed_scoring_worker_is_replaced_and_named(run_file, tmp_path):
    run, output, log, children = start(run_file(), tmp_path, *ASYNC)
    worker(children, "scoring-0").kill()
    said = wait_for(lambda said: re.search(r"scoring-0.*\n", said), run, log)
    assert re.search(r"scoring-0.* was killed by SIGKILL", said)
    before = said.count("\ncollection ")
    wait_for(lambda said: said.count("\ncollection ") >= before + 5, run, log)
    everyone = {*children, *psutil.Process(run.pid).children(recursive=True)}
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 128 + signal.SIGINT
    assert json.loads((output / "summary.json").read_text())["ended"] == "interrupted"
    assert gone(everyone)


def test_an_error_in_a_groups_task_ends_the_run_while_the_trainer_works(run_file, tmp_path):
    async def body():
        async with session_of(run_file(), tmp_path / "out", *ASYNC) as session:
            started, failed = asyncio.Event(), asyncio.Event()
            work, score = session.trainer.train, session.maker.score

            async def slow(samples):
                started.set()
                await failed.wait()
                return await work(samples)

            async def broken(group, *arguments):
                await score(group, *arguments)
                if group.group_index >= 4:  # of the collection that is generated while the first is trained on
                    await started.wait()
                    failed.set()
                    raise ZeroDivisionError("in a plugin")

            session.trainer.train, session.maker.score = slow, broken
            async with asyncio.timeout(60):
                await train(session)

    with pytest.raises(ZeroDivisionError, match="in a plugin"):
        asyncio.run(body())
    (line,) = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 1, "the step that had begun is trained and told"


@pytest.mark.parametrize("stray", ["harness", "verifier"])
def test_a_plugin_that_cancels_itself_does_not_end_a_run_in_silence(run_file, tmp_path, stray):
    async def cancelled(*_):
        raise asyncio.CancelledError

    async def body():
        async with session_of(run_file(), tmp_path / "out", "rollout.num_rollout=1") as session:
            if stray == "harness":
                session.maker.harness.run = cancelled
            else:
                session.maker.score = cancelled
            async with asyncio.timeout(60):
                await train(session)

    with pytest.raises(RerollError, match="Most responses failed: CancelledError|cancelled from within"):
        asyncio.run(body())


@pytest.mark.slow
def test_four_runs_at_once_all_work(run_file, tmp_path):
    config = Path(__file__).parents[1] / "configs" / "quickstart.toml"
    few = ["rollout.num_rollout=4", "eval.eval_interval=2", "rollout.rollout_batch_size=8"]
    # As long as all are there at once, the size of the evaluation shows nothing.
    few += ["eval.skip_eval_before_train=true", "eval.sets=[{name='held-out', task_set={name='addition', size=16}}]"]
    outputs = [tmp_path / f"run-{number}" for number in range(4)]
    log = tmp_path / "runs.log"
    runs = [begin_run(config, output, f"run.seed={number}", *few, log=log) for number, output in enumerate(outputs)]
    for run, output in zip(runs, outputs, strict=True):
        assert run.wait(300) == 0, log.read_text()
        summary = json.loads((output / "summary.json").read_text())
        assert (summary["ended"], summary["steps"]) == ("completed", 4)
        # The folder's name tells whose it was: other runs may be under way on this machine.
        assert not list(Path("/dev/shm").glob(f"reroll-weights-*-{run.pid}-*"))


def resident(process):
    return sum(item.memory_info().rss for item in [process, *process.children(recursive=True)])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_three_hundred_steps_take_no_further_memory(tmp_path):
    """Between step 50 and step 300, all processes together. An engine gives memory back and takes it again, 30 MB of it
    from one collection to the next, so that one look at either end would decide by chance."""
    config = Path(__file__).parents[1] / "configs" / "quickstart.toml"
    few = ["rollout.num_rollout=310", "eval.skip_eval_before_train=true", "eval.eval_interval=1000"]
    # Every response is trained on, and the policy stays what it was: all steps do the same work.
    same = ["rollout.group_filters=[]", "trainer.lr=1e-8"]
    run = subprocess.Popen(
        command(config, f'output.dir="{tmp_path / "out"}"', *few, *same),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    early, late = [], []
    for line in run.stderr:
        if line.startswith("collection "):
            done = int(line.split()[1].split("/")[0])
            if 40 <= done <= 60:
                early.append(resident(psutil.Process(run.pid)))
            elif 290 <= done <= 308:
                late.append(resident(psutil.Process(run.pid)))
    assert run.wait() == 0
    growth = (median(late) - median(early)) / 250 / 1e6
    print(f"grows by {growth:.4f} MB a step, from {median(early) / 1e6:.0f} MB", file=sys.stderr)
    assert growth < 0.1
