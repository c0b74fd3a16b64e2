"""One task → a group of scored traces."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reroll.api import (
    Binding,
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
from reroll.tasks.toolbox import Toolbox
from reroll.workers.together import cancelled_from_outside, first_cause, together


@dataclass(frozen=True)
class Judging:
    """Who judges the answers to the tasks of one source.

    Attributes:
        keys: verifier name, as targets use it → the name under which the scorer has it.
        weights: verifier name → weight of its score in the reward.
    """

    keys: Mapping[str, str]
    weights: Mapping[str, float]


@dataclass(frozen=True)
class GroupPlan:
    """How the groups of one data source, or of one evaluation, are drawn and judged.

    Attributes:
        sampling: everything but the seed.
        purpose: `train`, `train:<data source>` where several are listed, `eval:<set>`, or `generate` in place of
            `train`; part of the seeds.
        env_name: of the data source, or of the evaluation set; empty for the task's `source_dataset`.
        harness: runs the conversations; None leaves it to what the task is bound to, and then to the run's.
        judging: None for the run's verifiers and weights.
        first_sibling: position of the group's first response among all that are drawn for the task, for seeds.
    """

    rollout_id: int
    size: int
    sampling: SamplingParams
    max_context: int | None
    purpose: str
    env_name: str = ""
    harness: Harness | None = None
    judging: Judging | None = None
    first_sibling: int = 0

    @property
    def kind(self) -> str:
        """What groups are made for: `train`, `eval` or `generate`."""
        return self.purpose.partition(":")[0]


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
        toolbox: Toolbox | None = None,
    ) -> None:
        self.harness = harness
        self.renderer = renderer
        self.router = router
        self.admission = admission
        self.scorer = scorer
        self.verifier_weights = verifier_weights
        self.failure_policy = failure_policy
        self.rollout_seed = rollout_seed
        self.toolbox = toolbox or Toolbox({})

    async def make(self, group_index: int, dispatch: Dispatch, plan: GroupPlan) -> Group:
        """A scored group."""
        group = await self.generate(group_index, dispatch, plan)
        await self.score(group, dispatch, plan)
        return group

    async def generate(self, group_index: int, dispatch: Dispatch, plan: GroupPlan) -> Group:
        """A group whose responses are not scored yet.

        All requests of groups that are started in one turn of the event loop reach the engines in one turn, so that
        equal dispatches always make equal batches. A failure of a worker, an engine or a plugin's contract is raised;
        one of a single conversation is kept with its trace.
        """
        task, rendered, attempt = dispatch.task, dispatch.rendered, dispatch.attempt
        assert rendered is not None, "what is dispatched was bound before"
        weights = plan.judging.weights if plan.judging else self.verifier_weights
        siblings = range(plan.first_sibling, plan.first_sibling + plan.size)
        seeds = [response_seed(self.rollout_seed, task.key, attempt, sibling, plan.purpose) for sibling in siblings]
        group = Group(
            observation_id=uuid.uuid4().hex,
            group_index=group_index,
            attempt=attempt,
            rollout_id=plan.rollout_id,
            task=task,
            rendered=rendered,
            traces=[],
            seeds=seeds,
            verifier_weights=weights,
            source=plan.kind,
            env_name=plan.env_name or task.source_dataset,
        )
        harness, sampling = self._harness(dispatch, plan), _sampling(dispatch.binding, plan.sampling)
        try:
            async with self.admission.admit():
                group.traces = await together(
                    self._trace(group, harness, replace(sampling, seed=seed), plan.max_context) for seed in seeds
                )
        finally:
            self.router.release(group.observation_id)
        if dispatch.binding is not None:
            for trace in group.traces:
                trace.metrics |= dispatch.binding.metrics
        return group

    def _harness(self, dispatch: Dispatch, plan: GroupPlan) -> Harness:
        """What the data source names comes before what its task set brings along."""
        return plan.harness or (dispatch.binding and dispatch.binding.harness) or self.harness

    async def _trace(self, group: Group, harness: Harness, sampling: SamplingParams, max_context: int | None) -> Trace:
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
            max_turn_tokens=sampling.max_new_tokens,
            trace_id=trace_id,
            parse=self.renderer.parse,
            extend=self.renderer.extend,
            tools=self.toolbox.of(group.task) if harness.calls_tools else {},
        )
        try:
            trace = await harness.run(group.task, group.rendered, context)
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
            where = f"harness {harness.name}"
            trace.errors.append({"where": where, "message": f"{type(error).__name__}: {error}"})
            return trace
        if not isinstance(trace, Trace):
            raise PluginError(f"harness {harness.name!r} returned {trace!r}; it must return a Trace")
        check_trace(trace, harness.name)
        if not trace.is_completed:
            trace.errors.append({"where": "engine", "message": f"the response ended with {trace.stop_condition}"})
        return trace

    async def score(self, group: Group, dispatch: Dispatch, plan: GroupPlan) -> None:
        """Fills in verdicts and rewards; a trace that failed before is not scored. Verifiers of a derived task see the
        task that it was derived from, with the new answer."""
        usable = [trace for trace in group.traces if not trace.errors]
        judged = (dispatch.binding and dispatch.binding.judged) or group.task
        shown = [trace if trace.task is judged else replace(trace, task=judged) for trace in usable]
        verdicts = await self.scorer.score_group(judged, shown, plan.judging.keys if plan.judging else None)
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
            trace.rewards, reward = combine_rewards(trace.verdicts, group.verifier_weights, self.failure_policy)
            group.rewards.append(reward)


def _sampling(binding: Binding | None, sampling: SamplingParams) -> SamplingParams:
    """With what ends a response where the task was first asked."""
    if binding is None:
        return sampling
    if binding.stop is not None:
        sampling = replace(sampling, stop=binding.stop)
    if binding.stop_token_ids is not None:
        sampling = replace(sampling, stop_token_ids=binding.stop_token_ids)
    return sampling


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
