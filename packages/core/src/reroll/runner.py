"""One run from its first process to its summary, however it ends."""

from __future__ import annotations

import asyncio
import logging
import time

from reroll.api import WorkerDied, counted
from reroll.assembly import open_session
from reroll.config import LoadedRunFile
from reroll.config.run import RunSection
from reroll.launch.program import collect_less_garbage, forget_cancellation, log_into, stop_on_signals
from reroll.launch.start import Start, begin, held_output
from reroll.loop import train
from reroll.models.config import ModelSection
from reroll.reporting.config import OutputSection
from reroll.reporting.display import Display
from reroll.reporting.summary import Summary, closing_lines
from reroll.rollouts.config import RolloutSection
from reroll.session import Session
from reroll.workers.together import uninterrupted


async def run_training(run: LoadedRunFile, began: float) -> int:
    """Trains and writes the summary; gives the exit code. What failed is raised after the summary is written."""
    display = Display(run.get(RolloutSection).num_rollout)
    early: list[str] = []
    with held_output(run, early.append) as output:
        log_into(output / "run.log")
        try:
            for text in early:
                display.warn(text)
            start = begin(run, output, display.line, display.warn)
        except BaseException as error:
            display.close()
            logging.getLogger("reroll").error("the run was not started: %s", error)
            raise
        return await _run(run, start, display, began)


async def _run(run: LoadedRunFile, start: Start, display: Display, began: float) -> int:
    output = start.output
    display.line(f"run {output.name}: {run.path or 'defaults'} → {output}; starting trainer and engines")
    summary = Summary(name=run.get(RunSection).name, output=output, starts=start.attempt.number)
    if start.resumed is not None:
        summary.restore(start.resumed.state.summary)
        summary.checkpoint = start.resumed.folder if start.resumed.same_run else None
    summary.write()  # what an earlier start wrote is no longer how the run stands
    # The work is a task of its own, so that a signal or a death ends the work and never what comes after it.
    work = asyncio.create_task(_work(run, start, display, summary))
    stopped = stop_on_signals(work, display.line)
    failure: BaseException | None = None
    try:
        await work
        summary.ended = "completed"
    except asyncio.CancelledError as error:
        summary.ended, summary.message = "interrupted", f"by {stopped[0].name}" if stopped else "cancelled"
        failure = None if stopped else error
    except BaseException as error:
        failure = error
        summary.ended, summary.message = "failed", str(error) or type(error).__name__
    finally:
        display.close()
    summary.wall_seconds = time.perf_counter() - began
    _tell(summary, display)
    if failure is not None:
        logging.getLogger("reroll").error("the run failed", exc_info=failure)
        raise failure
    return 128 + stopped[0] if summary.ended == "interrupted" and stopped else 0


async def _work(run: LoadedRunFile, start: Start, display: Display, summary: Summary) -> None:
    """The loop between start and end of the workers. A worker that dies ends it, even while nobody waits for one."""
    deaths: list[WorkerDied] = []
    loop_task: asyncio.Task[None] | None = None

    def died(error: WorkerDied) -> None:
        deaths.append(error)
        if len(deaths) == 1 and loop_task is not None:
            loop_task.cancel()

    async with open_session(run, start, display, summary, died) as session:
        collect_less_garbage()
        loop_task = asyncio.create_task(train(session))
        interrupted: asyncio.CancelledError | None = None
        try:
            await loop_task
        except asyncio.CancelledError as error:
            if deaths:
                raise deaths[0] from None
            interrupted = error
            forget_cancellation()
            await session.checkpoint_interrupted()
        finally:
            session.finish_summary()
        await _export(run, session)
        await session.wait_for_checkpoints()
        if interrupted is not None:
            raise interrupted


async def _export(run: LoadedRunFile, session: Session) -> None:
    """The trained model, if there is one and the run file asks for it; after Ctrl-C as well."""
    if run.get(OutputSection).export_hf and session.trainer.version:
        target = session.context.output / "model"
        template = run.get(ModelSection).chat_template_text()
        try:
            await uninterrupted(session.trainer.export_hf(target, template))
        finally:
            session.accounts.summary.model = target if target.exists() else None


def _tell(summary: Summary, display: Display) -> None:
    """Writes the summary and says what the run came to."""
    try:
        summary.write()
    except OSError as error:
        display.line(f"summary.json could not be written: {error}")
    model = ", the model" if summary.model else ""
    if summary.checkpoint:
        model += f", the checkpoint {summary.checkpoint.name}"
    elif not model and summary.steps and not summary.missed_checkpoints:
        model = ", no weights (neither output.export_hf nor checkpoint.save_interval is set)"
    if summary.ended == "interrupted":
        collections = counted(summary.collections, "collection")
        display.line(f"interrupted {summary.message}; kept: {collections} of rollouts, metrics{model}")
    if summary.ended == "failed":
        display.line(f"the run failed; what it wrote is in {summary.output}")
        return
    for line in closing_lines(summary):
        print(line)
