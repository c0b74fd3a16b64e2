"""What a start has to do: the trials that are not finished, as jobs, and the tasks that are skipped instead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from reroll.api import PromptFilter, RenderedPrompt, Task
from reroll.generation.entries import Entry
from reroll.generation.protocol import GenerationProtocol
from reroll.generation.states import TrialStates
from reroll.generation.tasklist import Part, TaskList
from reroll.generation.trials import Job
from reroll.tasks.binding import Binder
from reroll.tasks.cursor import Dispatch, skip_reason
from reroll.tasks.pointers import pointer_of, task_digest
from reroll.tasks.render import Renderer

PASSED_OVER = 1000
"""Finished tasks after which whatever else waits gets a turn."""


@dataclass(frozen=True)
class WorkLeft:
    """Asks `states` for each task when its turn comes; prompts are rendered then, and not before.

    Attributes:
        together: a task's trials are one job, since a verifier compares them.
    """

    protocol: GenerationProtocol
    tasks: TaskList
    states: TrialStates
    renderer: Renderer
    filters: Mapping[str, PromptFilter]
    together: bool

    async def jobs(self) -> AsyncIterator[Job | Entry]:
        """In the order of tasks: the jobs of those with trials left; of one that is skipped its entry, which is still
        to be kept."""
        for number, position in enumerate(self.protocol.positions()):
            if number % PASSED_OVER == 0:
                await asyncio.sleep(0)
            if not (missing := self.states.missing(position)):
                continue
            part = self.tasks.part(position)
            task = part.task(position)
            dispatch, reason = await self._prepared(part, task)
            if dispatch is None:
                yield _skipped(position, part, task, reason)
                continue
            n_trials = self.protocol.n_trials
            jobs = [range(n_trials)] if self.together else [range(trial, trial + 1) for trial in missing]
            digest = task_digest(task)
            for trials in jobs:
                yield Job(position, trials, part, dispatch, pointer_of(task), digest)

    async def _prepared(self, part: Part, task: Task) -> tuple[Dispatch | None, str]:
        """The dispatch, or why the task is skipped."""

        def skip(task: Task, rendered: RenderedPrompt) -> str | None:
            return skip_reason(task, rendered, part.max_prompt_len, self.filters)

        if part.task_set.lazy:
            skipped: Counter[str] = Counter()
            # Once: what comes in place of a prompt that is skipped is another position's.
            binder = Binder(part.task_set, self.renderer.render, skip, skipped, patience=0.0, most_tries=1)
            found = await binder.bind(task, 0)
            if found is None:
                return None, next(iter(skipped), binder.why)
            binding, rendered = found
            return Dispatch(binding.task, rendered, 0, binding=binding), ""
        rendered = self.renderer.render(task)
        reason = skip(task, rendered)
        return (Dispatch(task, rendered, 0), "") if reason is None else (None, reason)


def _skipped(position: int, part: Part, task: Task, reason: str) -> Entry:
    return Entry(
        position=position,
        trial=0,
        outcome="skipped",
        final=True,
        reward=None,
        prompt_tokens=0,
        tokens=0,
        truncated=False,
        seed=0,
        source=part.name,
        source_dataset=task.source_dataset,
        source_row=task.source_row,
        prepared_sample_id=task.prepared_sample_id,
        detail=reason,
        digest=task_digest(task),
    )
