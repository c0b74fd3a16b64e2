"""Trials, which are generated, judged, and tried again where the infrastructure failed them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from reroll.api import Decision, EngineError, Group, Trace
from reroll.generation.entries import Entry, Outcome
from reroll.generation.tasklist import Part
from reroll.generation.writing import Finished
from reroll.rollouts.groups import GroupMaker
from reroll.rollouts.scoring.rewards import is_right
from reroll.tasks.cursor import Dispatch
from reroll.traces.saved import SavedGroup

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before an attempt is tried again; doubled each time, and drawn from the upper half."""
KEPT = Decision("passed")
"""Every attempt is kept, whatever it came to."""


@dataclass(frozen=True)
class Job:
    """Trials of one task that are run together: one, or all where a verifier compares them.

    Attributes:
        trials: consecutive numbers.
        pointers: source_dataset, source_row and prepared_sample_id of the task in its set; digest: `task_digest` of it.
    """

    position: int
    trials: range
    part: Part
    dispatch: Dispatch
    pointers: tuple[str, int, str]
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.position}/{self.trials.start}"


class TrialRunner:
    """Runs jobs, one call each; holds nothing of them.

    Args:
        pass_reward: see `generation.pass_reward`.
        max_retries: see `generation.max_retries`.
    """

    def __init__(self, maker: GroupMaker, pass_reward: float | None, max_retries: int) -> None:
        self._maker = maker
        self._pass_reward = pass_reward
        self._max_retries = max_retries

    async def run(
        self, job: Job, slot: AbstractAsyncContextManager[object], generated: Callable[[Group], None]
    ) -> tuple[Group, list[Finished]]:
        """The group of the job's trials, and what to keep of each.

        Args:
            slot: held while responses are generated, and not while they are judged.
            generated: told when responses are there.
        """
        plan = replace(job.part.plan, size=len(job.trials), first_sibling=job.trials.start)
        async with slot:
            group = await self._maker.generate(job.position, job.dispatch, plan)
            for again in range(self._max_retries):
                if not any(trace.errors for trace in group.traces):
                    break
                await asyncio.sleep(pause(again))
                group = await self._maker.generate(job.position, job.dispatch, plan)
        _check_frozen(group)
        generated(group)
        await self._maker.score(group, job.dispatch, plan)
        for again in range(self._max_retries):
            if not any(map(_may_be_judged, group.traces)):
                break
            await asyncio.sleep(pause(again))
            for trace in group.traces:
                if _may_be_judged(trace):
                    trace.errors, trace.verdicts = [], {}
            await self._maker.score(group, job.dispatch, plan)
        return group, [self._finished(job, group, index) for index in range(len(group.traces))]

    def _finished(self, job: Job, group: Group, index: int) -> Finished:
        trace, reward = group.traces[index], group.rewards[index]
        outcome, final, detail = self._outcome(trace, reward, group.verifier_weights)
        source_dataset, source_row, prepared_sample_id = job.pointers
        entry = Entry(
            position=job.position,
            trial=job.trials[index],
            outcome=outcome,
            final=final,
            reward=reward if outcome != "error" else None,
            prompt_tokens=len(group.rendered.token_ids),
            tokens=trace.response_tokens,
            truncated=trace.truncated,
            seed=group.seeds[index],
            source=job.part.name,
            source_dataset=source_dataset,
            source_row=source_row,
            prepared_sample_id=prepared_sample_id,
            detail=detail,
            digest=job.digest,
        )
        alone = replace(group, traces=[trace], seeds=[group.seeds[index]], rewards=[reward])
        alone.observation_id = f"{group.observation_id}-{index}" if len(group.traces) > 1 else group.observation_id
        return Finished(entry, SavedGroup(alone, KEPT))

    def _outcome(self, trace: Trace, reward: float | None, weights: Mapping[str, float]) -> tuple[Outcome, bool, str]:
        """Outcome, whether that is final, and what failed."""
        if trace.errors or not trace.verdicts or reward is None:
            first = trace.errors[0] if trace.errors else {"where": "scoring", "message": "no verifier judged it"}
            unknown = {verdict.state for verdict in trace.verdicts.values() if not verdict.scored} == {"unknown"}
            return "error", unknown, f"{first['where']}: {first['message']}"
        if self._pass_reward is not None:
            passed = reward >= self._pass_reward - 1e-9
        else:
            passed = is_right(trace.verdicts, weights)
        return ("passed" if passed else "failed"), True, ""


def _may_be_judged(trace: Trace) -> bool:
    """Whether a verifier failed that may not fail again; what it cannot judge it never can."""
    states = {verdict.state for verdict in trace.verdicts.values() if not verdict.scored}
    return bool(states - {"unknown"})


def _check_frozen(group: Group) -> None:
    """EngineError if the weights were not those that the run is about."""
    versions = sorted({version for trace in group.traces for version in trace.weight_versions} - {0})
    if versions:
        raise EngineError(
            f"an engine answered with weights of version {versions[0]}: another run loads weights into it, and no pass "
            "rate could be told of a model that changes"
        )


def pause(again: int) -> float:
    """Seconds before try `again`, counted from 0. Drawn, so that what failed together is not tried together."""
    return min(FIRST_PAUSE * 2.0 ** min(again, 30), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
