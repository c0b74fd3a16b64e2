"""One run from its first process to its summary, however it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from reroll.api import RerollError
from reroll.config import LoadedRunFile
from reroll.loop import train
from reroll.reporting.config import OutputSection
from reroll.reporting.display import Display
from reroll.reporting.summary import closing_lines
from reroll.rollouts.config import RolloutSection
from reroll.session import Session, make_output, open_session


async def run_training(run: LoadedRunFile, began: float) -> int:
    """Trains and writes the summary however the run ends; gives the exit code."""

    output = make_output(run)
    logging.basicConfig(filename=output / "run.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    display = Display(run.get(RolloutSection).num_rollout)
    stopped: list[signal.Signals] = []
    _stop_on_signals(stopped, display)
    display.line(f"run {output.name}: {run.path or 'defaults'} → {output}")
    try:
        return await _train_and_summarise(run, output, display, stopped, began)
    finally:
        display.close()


async def _train_and_summarise(
    run: LoadedRunFile, output: Path, display: Display, stopped: list[signal.Signals], began: float
) -> int:
    failure: BaseException | None = None
    summary = None
    try:
        async with open_session(run, output, display) as session:
            summary = session.summary
            try:
                await train(session)
                summary.ended = "completed"
            except asyncio.CancelledError:
                if not stopped:
                    raise
                summary.ended, summary.message = "interrupted", f"by {stopped[0].name}"
                _forget_cancellation()
            session.finish_summary()
            await _export(run, session)
    except asyncio.CancelledError:
        if not stopped:
            raise
    except RerollError as error:
        failure = error
    if summary is not None:
        if failure is not None:
            summary.ended, summary.message = "failed", str(failure)
        summary.wall_seconds = time.perf_counter() - began
        summary.write()
        display.close()
        if summary.ended == "interrupted":
            display.line(f"interrupted {summary.message}; kept: {summary.collections} collections of rollouts, metrics")
        for line in closing_lines(summary):
            print(line)
    if failure is not None:
        display.line(f"the run failed; what it wrote is in {output}")
        raise failure
    return 128 + stopped[0] if stopped else 0


async def _export(run: LoadedRunFile, session: Session) -> None:
    """The trained model, if there is one and the run file asks for it; after Ctrl-C as well."""

    if run.get(OutputSection).export_hf and session.trainer.version:
        target = session.context.output / "model"
        await session.trainer.export_hf(target)
        session.summary.model = target


def _stop_on_signals(stopped: list[signal.Signals], display: Display) -> None:
    """The first Ctrl-C or SIGTERM ends the run cleanly, a second one at once."""
    loop, body = asyncio.get_running_loop(), asyncio.current_task()
    assert body is not None

    def stop(received: signal.Signals) -> None:
        if stopped:
            sys.exit(128 + received)
        stopped.append(received)
        display.line(f"{received.name}: ending the run; once more ends it at once")
        body.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


def _forget_cancellation() -> None:
    """The request to stop was heard: what follows may wait and use timeouts again."""
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()
