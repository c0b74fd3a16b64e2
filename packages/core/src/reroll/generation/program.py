"""One start of a generation, from its first process to its summary, however it ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from reroll.api import WorkerDied, counted
from reroll.config import LoadedRunFile, load_run_file
from reroll.config.atomic import PARTIAL
from reroll.config.run import RunSection
from reroll.generation.assembly import Measured, measure, open_generation
from reroll.generation.bands import Band
from reroll.generation.config import GenerationSection
from reroll.generation.display import GenerationDisplay
from reroll.generation.entries import Outcome
from reroll.generation.identity import training_differences
from reroll.generation.index_file import require_parquet
from reroll.generation.loop import generate
from reroll.generation.mending import mend
from reroll.generation.outputs import Outputs, conclude
from reroll.generation.protocol import FILE as PROTOCOL
from reroll.generation.protocol import ResultsError, Shard, check_results
from reroll.generation.states import TrialStates
from reroll.generation.store import JOURNAL, TRIALS, mark_whole, read_journal, traces_path, unmark
from reroll.generation.summary_view import show
from reroll.generation.tally import Tally
from reroll.generation.time_left import TimeLeft
from reroll.launch.attempts import LOCK, register_attempt, run_lock
from reroll.launch.program import collect_less_garbage, log_into, stop_on_signals
from reroll.launch.start import Start

INDEX = "index.parquet"


def results_folder(run: LoadedRunFile, shard: Shard | None) -> Path:
    """Where results are kept: of a shard, in a folder of its own."""
    folder = run.get(GenerationSection).results(run)
    return folder if shard is None else folder / f"shard_{shard[0]}_of_{shard[1]}"


def index_path(run: LoadedRunFile, shard: Shard | None) -> Path:
    """Where the index of selected tasks is written; of a shard always in its own folder."""
    given = run.get(GenerationSection).output_index
    return results_folder(run, shard) / INDEX if given is None or shard is not None else given


async def run_generation(run: LoadedRunFile, shard: Shard | None) -> int:
    """Runs what is left, and writes summary and index; gives the exit code. What failed is raised."""
    folder = results_folder(run, shard)
    early: list[str] = []
    _make(folder)
    with run_lock(folder, early.append, "generation.results_dir"):
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        log_into(logs / f"{run.get(RunSection).name}.log")
        logger = logging.getLogger("reroll")
        try:
            return await _run(run, shard, folder, early)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            logger.error("the generation ended: %s", error)
            raise


async def _run(run: LoadedRunFile, shard: Shard | None, folder: Path, early: list[str]) -> int:
    measured = measure(run, shard, early.append)
    index = index_path(run, shard)
    require_parquet(f"generation.output_index = {str(index)!r}")
    before = check_results(folder, measured.protocol)
    if before is not None:
        measured = replace(measured, protocol=measured.protocol.model_copy(update={"run_id": before.run_id}))
    protocol = measured.protocol
    states = TrialStates(protocol.tasks, protocol.n_trials)
    mend(folder, states.note, early.append)
    # A shard may have no task: its journal is there all the same, by which a merge knows that nothing of it is missing.
    (folder / JOURNAL).touch()
    protocol.write(folder)
    counts = states.count(protocol.positions())
    total = sum(counts[name] for name in ("passed", "failed", "error", "skipped", "missing"))
    longest = max(part.plan.max_context or part.plan.sampling.max_new_tokens for part in measured.tasks.parts)
    time_left = TimeLeft(longest, run.get(GenerationSection).n_concurrent)
    display = GenerationDisplay(total, time_left, _finished(counts))
    display.line(f"generation {run.get(RunSection).name}: {_asked(measured)} → {folder}")
    if before is not None:
        left = counts["left"]
        display.line(f"goes on: {total - left} of {counted(total, 'trial')} are finished, {left} are left")
    for text in [*early, *policy_warnings(run), *_layout_warnings(run, folder)]:
        display.warn(text)
    try:
        code = await _work(run, measured, folder, states, display) if counts["left"] else 0
    finally:
        display.close()
    if code == 0:
        _conclude(run, measured, folder, index, display)
    return code


async def _work(
    run: LoadedRunFile, measured: Measured, folder: Path, states: TrialStates, display: GenerationDisplay
) -> int:
    """Runs the trials that are left. A worker that dies ends them, even while nobody waits for one."""
    unmark(folder)
    attempt = register_attempt(folder, secrets.token_hex(8), None, -1, display.warn)
    start = Start(folder, attempt, None, measured.protocol.run_id, None)
    deaths: list[WorkerDied] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None

        def died(error: WorkerDied) -> None:
            deaths.append(error)
            if len(deaths) == 1:
                task.cancel()

        async with open_generation(run, measured, start, states, display, died) as session:
            collect_less_garbage()
            display.begin()
            await generate(session)

    working = asyncio.create_task(work())
    stopped = stop_on_signals(working, display.line)
    try:
        await working
    except asyncio.CancelledError:
        if deaths:
            raise deaths[0] from None
        if not stopped:
            raise
        display.line(
            "interrupted: what is finished is kept, and the same command goes on with the rest; `reroll generate merge "
            f"{folder} --output INDEX` counts what is there"
        )
        return 128 + stopped[0]
    return 0


def _conclude(run: LoadedRunFile, measured: Measured, folder: Path, index: Path, display: GenerationDisplay) -> None:
    """Writes summary and index, says what all came to, and in the last line where it is."""
    protocol = measured.protocol
    tally = Tally(protocol.positions(), protocol.n_trials)
    for entry in read_journal(folder, display.warn):
        tally.add(entry)
    if not tally.missing:
        mark_whole(folder)
    band = Band.parse(run.get(GenerationSection).band)
    summary = conclude(tally, protocol, band, Outputs.of_folder(folder, index), [folder])
    show(summary, Console())
    if summary.errors:
        errors = counted(summary.errors, "trial")
        print(f"{errors} ended as errors: the same command tries those again that may succeed")
    last = f"generation done: results={folder} index={index}"
    logging.getLogger("reroll").info("%s", last)
    print(last)


def _asked(measured: Measured) -> str:
    protocol = measured.protocol
    tasks = len(protocol.positions())
    of = f"shard {protocol.shard[0]} of {protocol.shard[1]}, " if protocol.shard else ""
    return f"{of}{counted(tasks, 'task')} x {counted(protocol.n_trials, 'trial')}"


def _finished(counts: dict[str, int]) -> dict[Outcome, int]:
    """Without the errors that are tried again."""
    errors = counts["error"] - (counts["left"] - counts["missing"])
    return {"passed": counts["passed"], "failed": counts["failed"], "error": errors, "skipped": counts["skipped"]}


def _layout_warnings(run: LoadedRunFile, folder: Path) -> list[str]:
    """Transcripts are read wherever they are, and a person looks for them in one place."""
    layout = run.get(GenerationSection).layout
    other, name = (folder / TRIALS, "tree") if layout == "journal" else (traces_path(folder), "journal")
    if not other.exists():
        return []
    return [f'transcripts of earlier starts are in {other}; generation.layout = "{name}" puts the others there as well']


def policy_warnings(run: LoadedRunFile) -> list[str]:
    """What makes the measured policy another one than the trained."""
    path = run.get(GenerationSection).training_run
    if path is None:
        return []
    training = load_run_file(path, [], run.plugins)
    return [
        f"{key}: the pass rates are of another policy than the one that will be trained"
        for key in training_differences(run, training)
    ]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise ResultsError(f"generation.results_dir: {folder} cannot be used: {error.strerror}") from None
    shards = sorted(name for name in there if name.startswith("shard_") and (folder / name / PROTOCOL).exists())
    if shards and PROTOCOL not in there:
        raise ResultsError(
            f"generation.results_dir: {folder} holds results of shards ({', '.join(shards[:3])}); merge them with "
            "`reroll generate merge`, run the others with --shard, or give another folder for all tasks"
        )
    # What a start may leave that ended before it had said what it measures, and the folders of shards.
    others = {name for name in there - {LOCK, "logs", PROTOCOL + PARTIAL} if not name.startswith("shard_")}
    if others and PROTOCOL not in there:
        raise ResultsError(
            f"generation.results_dir: {folder} holds something else than results of `reroll generate`; give a new "
            "folder"
        )
