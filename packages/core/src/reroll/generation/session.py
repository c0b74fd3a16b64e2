"""What the loop of a generation does with its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from reroll.api import Group
from reroll.generation.display import GenerationDisplay
from reroll.generation.entries import Entry
from reroll.generation.recording import TaskRecorder
from reroll.generation.slots import Slots
from reroll.generation.states import TrialStates
from reroll.generation.trials import Job, TrialRunner
from reroll.generation.work_left import WorkLeft
from reroll.generation.writing import Finished, ResultsWriter
from reroll.publication.recovery import Recovery
from reroll.workers.together import first_cause

SKIPPED_TOGETHER = 500
"""Skipped tasks that are written at once: a whole file of prompts that are too long must not wait for the disk each."""


@dataclass
class GenerationSession:
    """Everything that the loop works with.

    Attributes:
        recorder: None where nobody records.
    """

    left: WorkLeft
    states: TrialStates
    writer: ResultsWriter
    runner: TrialRunner
    slots: Slots
    recovery: Recovery
    display: GenerationDisplay
    recorder: TaskRecorder | None = None
    _skipped: list[Finished] = field(default_factory=list)
    """Tasks that are not in the journal yet."""
    _warned: set[str] = field(default_factory=set)
    _running: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Attempts are made in here and engines watched; left when all that was begun is kept. A failure of one ends
        all of them."""
        try:
            async with asyncio.TaskGroup() as watching:
                self.recovery.start(watching)
                try:
                    async with asyncio.TaskGroup() as self._running:
                        yield
                finally:
                    self.recovery.stop()
        except BaseExceptionGroup as error:
            cause = first_cause(error)
            raise cause from cause.__cause__

    async def jobs(self) -> AsyncIterator[Job]:
        """What is not finished, in the order of tasks. Tasks that are skipped are kept on the way."""
        async for item in self.left.jobs():
            if isinstance(item, Job):
                yield item
                continue
            self._skipped.append(Finished(item, None))
            if len(self._skipped) == SKIPPED_TOGETHER:
                await self._keep_skipped()
        await self._keep_skipped()

    async def _keep_skipped(self) -> None:
        skipped, self._skipped = self._skipped, []
        await self.writer.add(skipped)
        for entry, _ in skipped:
            self.states.note(entry)
            for trial in range(self.states.n_trials):
                self.display.finished(f"{entry.position}/{trial}", "skipped")

    async def begin(self, job: Job) -> None:
        """Waits for a place, and runs the job in it."""
        await self.slots.take()
        assert self._running is not None, "attempts are made while the session is working"
        self._running.create_task(self._attempt(job))

    async def _attempt(self, job: Job) -> None:
        name = job.name
        self.display.started(name, job.dispatch.task.key, job.trials.start)

        def generated(group: Group) -> None:
            self.display.generated(name, sum(trace.response_tokens for trace in group.traces))

        try:
            group, finished = await self.runner.run(job, self.slots.generating(), generated)
            # Of trials that were made again because they are compared, what was kept before counts.
            missing = self.states.missing(job.position)
            new = [item for item in finished if item.entry.trial in missing]
            await self.writer.add(new)
        finally:
            self.slots.done()
        for item in new:
            self.states.note(item.entry)
            self.display.finished(name, item.entry.outcome)
            self._warn(item.entry)
        if self.recorder is not None:
            self.recorder.add(group, finished)

    def _warn(self, entry: Entry) -> None:
        """Says the first error of each kind."""
        where = entry.detail.partition(":")[0]
        if entry.outcome == "error" and where not in self._warned:
            self._warned.add(where)
            self.display.warn(f"{entry.prepared_sample_id}, trial {entry.trial}: {entry.detail} (said once a kind)")
