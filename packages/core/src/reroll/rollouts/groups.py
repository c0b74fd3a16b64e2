"""One task → a group of scored traces."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reroll.api import (
    EngineError,
    Group,
    Harness,
    HarnessContext,
    PluginError,
    RequestRefused,
    SamplingParams,
    Trace,
    VersionSpan,
    WorkerDied,
)
from reroll.rollouts.admission import GroupAdmission
from reroll.rollouts.scoring.rewards import FailurePolicy, combine_rewards
from reroll.rollouts.scoring.scorer import Scorer
from reroll.rollouts.seeds import response_seed
from reroll.serving.router import LeastOutstandingTokensRouter
from reroll.tasks.cursor import Dispatch
from reroll.tasks.render import Renderer
from reroll.workers.together import cancelled_from_outside, first_cause, together


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


class GroupMaker:
    """Runs the harness for every sibling of a group and has the group scored."""

    def __init__(
        self,
        harness: Harness,
        renderer: Renderer,
        router: LeastOutstandingTokensRouter,
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

    async def make(self, group_index: int, dispatch: Dispatch, plan: GroupPlan) -> Group:
        """A scored group."""
        group = await self.generate(group_index, dispatch, plan)
        await self.score(group)
        return group

    async def generate(self, group_index: int, dispatch: Dispatch, plan: GroupPlan) -> Group:
        """A group whose responses are not scored yet.

        All requests of groups that are started in one turn of the event loop reach the engines in one turn, so that
        equal dispatches always make equal batches. A failure of a worker, an engine or a plugin's contract is raised;
        one of a single conversation is kept with its trace.
        """
        task, rendered, attempt, _ = dispatch
        seeds = [
            response_seed(self.rollout_seed, task.key, attempt, sibling, plan.purpose) for sibling in range(plan.size)
        ]
        group = Group(
            observation_id=uuid.uuid4().hex,
            group_index=group_index,
            attempt=attempt,
            rollout_id=plan.rollout_id,
            task=task,
            rendered=rendered,
            traces=[],
            seeds=seeds,
            verifier_weights=self.verifier_weights,
            source="train" if plan.purpose == "train" else "eval",
        )
        try:
            async with self.admission.admit():
                group.traces = await together(
                    self._trace(group, replace(plan.sampling, seed=seed), plan.max_context) for seed in seeds
                )
        finally:
            self.router.release(group.observation_id)
        return group

    async def _trace(self, group: Group, sampling: SamplingParams, max_context: int | None) -> Trace:
        room = sampling.max_new_tokens
        if max_context is not None:
            room = min(room, max_context - len(group.rendered.token_ids))
        trace_id = uuid.uuid4().hex
        context = HarnessContext(
            generate=lambda request: self.router.generate(group.observation_id, request),
            render=self.renderer.render,
            decode=self.renderer.decode,
            sampling=replace(sampling, max_new_tokens=room),
            max_context=max_context,
            trace_id=trace_id,
        )
        try:
            trace = await self.harness.run(group.task, group.rendered, context)
        except (Exception, SystemExit, asyncio.CancelledError) as failure:
            if isinstance(failure, asyncio.CancelledError) and cancelled_from_outside():
                raise
            error = first_cause(failure, WorkerDied, PluginError, EngineError)
            if isinstance(error, WorkerDied | PluginError):
                raise error from error.__cause__
            if isinstance(error, EngineError) and not isinstance(error, RequestRefused):
                raise error from error.__cause__  # an engine that stopped is no property of this response
            # One conversation that fails must not cost its siblings: it is kept with its error, unscored.
            trace = Trace(id=trace_id, task=group.task, stop_condition="error")
            where = f"harness {self.harness.name}"
            trace.errors.append({"where": where, "message": f"{type(error).__name__}: {error}"})
            return trace
        if not isinstance(trace, Trace):
            raise PluginError(f"harness {self.harness.name!r} returned {trace!r}; it must return a Trace")
        check_trace(trace, self.harness.name)
        if not trace.is_completed:
            trace.errors.append({"where": "engine", "message": f"the response ended with {trace.stop_condition}"})
        return trace

    async def score(self, group: Group) -> None:
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


def check_trace(trace: Trace, harness: str) -> None:
    """PluginError if a trace's nodes do not fit together: a shifted log-probability would be trained on silently."""
    for index, node in enumerate(trace.nodes):
        tokens = len(node.token_ids)
        wrong = None
        if node.parent is not None and not 0 <= node.parent < index:
            wrong = f"parent {node.parent}"
        elif len(node.mask) != tokens:
            wrong = f"{len(node.mask)} mask flags for {tokens} tokens"
        elif node.sampled and len(node.logprobs) != tokens:
            wrong = f"{len(node.logprobs)} log-probabilities for {tokens} tokens"
        elif any(node.mask) and not node.sampled:
            wrong = "loss on tokens that were not sampled"
        elif node.sampled and not _tile(node.weight_versions, tokens):
            spans = [tuple(span) for span in node.weight_versions]
            wrong = f"weight versions {spans} that do not cover its {tokens} tokens"
        if wrong:
            raise PluginError(f"harness {harness!r} gave a trace whose node {index} has {wrong}")


def _tile(spans: Sequence[VersionSpan], tokens: int) -> bool:
    """Whether the spans follow each other from the first token to the last: staleness is read from them."""
    ends = [0, *(span.end for span in spans)]
    return [span.start for span in spans] == ends[:-1] and ends[-1] == tokens
