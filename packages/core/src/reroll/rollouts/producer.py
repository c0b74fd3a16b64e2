"""The producer: tasks → groups of scored traces."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reroll.api import (
    Group,
    Harness,
    HarnessContext,
    PluginError,
    RenderedPrompt,
    SamplingParams,
    Task,
    Trace,
    WorkerDied,
)
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.scoring.rewards import FailurePolicy, combine_rewards
from reroll.rollouts.scoring.scorer import Scorer
from reroll.rollouts.seeds import response_seed
from reroll.serving.router import LeastLoadedRouter
from reroll.tasks.cursor import Dispatch
from reroll.tasks.render import Renderer
from reroll.workers.together import together


@dataclass(frozen=True)
class GroupPlan:
    """How the groups of one collection, or of one evaluation, are drawn.

    Attributes:
        sampling: everything but the seed.
        purpose: `train`, or the name of an evaluation set; part of the seeds.
    """

    rollout_id: int
    size: int
    sampling: SamplingParams
    max_context: int | None
    purpose: str


class Producer:
    """Runs the harness for every sibling of a group and has the group scored."""

    def __init__(
        self,
        harness: Harness,
        renderer: Renderer,
        router: LeastLoadedRouter,
        admission: GroupAdmission,
        scorer: Scorer,
        verifier_weights: dict[str, float],
        failure_policy: FailurePolicy,
        rollout_seed: int,
    ) -> None:
        self.harness = harness
        self.renderer = renderer
        self.router = router
        self.admission = admission
        self.scorer = scorer
        self.verifier_weights = verifier_weights
        self.failure_policy = failure_policy
        self.rollout_seed = rollout_seed
        self._group_indices = itertools.count()
        self.generation_seconds = 0.0
        self.generated_tokens = 0

    def next_group_index(self) -> int:
        return next(self._group_indices)

    async def groups(self, dispatches: Sequence[tuple[int, Dispatch]], plan: GroupPlan) -> list[Group]:
        """Scored groups in the order of the dispatches, each given as (group index, dispatch).

        All requests reach the engines in one turn of the event loop, so that equal dispatches always make equal
        batches. The first failure of a worker or a plugin's contract cancels the rest and is raised.
        """
        start = time.perf_counter()
        groups = await together(self._generate(index, item, plan) for index, item in dispatches)
        self.generation_seconds += time.perf_counter() - start
        self.generated_tokens += sum(trace.response_tokens for group in groups for trace in group.traces)
        await together(self._score(group) for group in groups)
        return groups

    async def _generate(self, group_index: int, dispatch: Dispatch, plan: GroupPlan) -> Group:
        task, rendered, attempt = dispatch
        seeds = [
            response_seed(self.rollout_seed, task.key, attempt, sibling, plan.purpose) for sibling in range(plan.size)
        ]
        async with self.admission.admit():
            traces = await together(
                self._trace(group_index, task, rendered, replace(plan.sampling, seed=seed), plan) for seed in seeds
            )
        self.router.release(group_index)
        return Group(
            observation_id=uuid.uuid4().hex,
            group_index=group_index,
            attempt=attempt,
            rollout_id=plan.rollout_id,
            task=task,
            rendered=rendered,
            traces=traces,
            seeds=seeds,
            verifier_weights=self.verifier_weights,
            source="train" if plan.purpose == "train" else "eval",
        )

    async def _trace(
        self, group_index: int, task: Task, rendered: RenderedPrompt, sampling: SamplingParams, plan: GroupPlan
    ) -> Trace:
        room = sampling.max_new_tokens
        if plan.max_context is not None:
            room = min(room, plan.max_context - len(rendered.token_ids))
        trace_id = uuid.uuid4().hex
        context = HarnessContext(
            generate=lambda request: self.router.generate(group_index, request),
            render=self.renderer.render,
            decode=self.renderer.decode,
            sampling=replace(sampling, max_new_tokens=room),
            max_context=plan.max_context,
            trace_id=trace_id,
            extra={},
        )
        try:
            return await self.harness.run(task, rendered, context)
        except (WorkerDied, PluginError):
            raise
        except Exception as error:
            # One conversation that fails must not cost its siblings: it is kept with its error, unscored.
            failed = Trace(id=trace_id, task=task, stop_condition="error")
            failed.errors.append(
                {"where": f"harness {self.harness.name}", "message": f"{type(error).__name__}: {error}"}
            )
            return failed

    async def _score(self, group: Group) -> None:
        """Fills in verdicts and rewards; a trace that failed before is not scored."""
        usable = [trace for trace in group.traces if not trace.errors]
        verdicts = await self.scorer.score_group(group.task, usable)
        for trace, found in zip(usable, verdicts, strict=True):
            trace.verdicts = dict(found)
            for name, verdict in found.items():
                if not verdict.scored:
                    trace.errors.append({"where": f"verifier {name}", "message": f"{verdict.state}: {verdict.detail}"})
        group.rewards = []
        for trace in group.traces:
            if not trace.verdicts:
                group.rewards.append(None)
                continue
            trace.rewards, reward = combine_rewards(trace.verdicts, self.verifier_weights, self.failure_policy)
            group.rewards.append(reward)
